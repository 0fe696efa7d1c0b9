"""`gradcam batch`: explaining many images without a server."""
