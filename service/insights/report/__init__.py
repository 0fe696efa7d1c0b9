"""The report of a batch: one HTML page of its maps, classes and clusters."""
