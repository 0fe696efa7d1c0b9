"""Detectors: their outputs in any known form, converted to boxes with classes and scores."""
