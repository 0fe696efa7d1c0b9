"""`gradcam compile`: a model's fast path, compiled ahead of time."""
