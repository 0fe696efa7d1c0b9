"""The serving processes, their supervisor, and the port."""
