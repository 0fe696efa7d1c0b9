"""Find out where the positions of a layer's output lie on the image."""
