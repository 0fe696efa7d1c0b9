"""Where the positions of a layer lie on the image."""
