"""`:answer` and `gradcam answer`: the answer to a question about each image, word by word."""
