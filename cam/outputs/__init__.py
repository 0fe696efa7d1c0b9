"""What a model says, read into one form: logits, segments, boxes."""
