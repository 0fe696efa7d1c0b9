"""`:predict`: the most probable classes of each image, from one forward pass."""
