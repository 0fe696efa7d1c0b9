"""How maps are got from a model: in one pass, in steps, compiled."""
