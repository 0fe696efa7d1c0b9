"""Draw maps as pictures with NumPy, OpenCV and Pillow; nothing here needs torch."""
