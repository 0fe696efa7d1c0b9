"""`:explain` and `gradcam explain`: where in each image the model sees a class."""
