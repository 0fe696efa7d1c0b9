"""The same service through Ray Serve, and the same batch through Ray."""
