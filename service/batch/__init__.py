"""From a folder of images to their maps, without a server."""
