"""The serving process, its supervisor, and the port."""
