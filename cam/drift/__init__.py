"""Watch the maps of a live model: what they are like, and whether that has changed."""
