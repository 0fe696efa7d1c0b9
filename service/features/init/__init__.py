"""`gradcam init`: what a checkpoint is, and the `models.toml` with which it can be served."""
