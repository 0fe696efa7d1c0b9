"""Audits and `gradcam audit`: which methods and layers explain a model, measured on photos."""
