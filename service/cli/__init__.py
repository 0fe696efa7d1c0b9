"""The command line `gradcam`."""
