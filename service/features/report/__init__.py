"""What the maps of many photos show together: the report of a batch, and its clusters."""
