"""The steps of one image: decode, preprocess, query the model, draw, encode."""
