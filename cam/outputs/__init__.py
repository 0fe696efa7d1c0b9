"""Model outputs, converted to one form: logits, segments or detections."""
