"""One image's way: decode, preprocess, ask, draw, encode."""
