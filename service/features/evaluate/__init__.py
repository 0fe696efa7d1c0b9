"""`:evaluate`: how good the maps of each image are, by the metrics of `cam.evaluation`."""
