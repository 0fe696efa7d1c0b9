"""`gradcam reference`: the statistics of good photos' maps, with which live maps are compared."""
