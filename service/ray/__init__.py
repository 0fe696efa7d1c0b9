"""The service on Ray Serve, and the batch command on a Ray cluster."""
