"""The ways to compute maps: in one pass, in steps, and through a compiled copy of the model."""
