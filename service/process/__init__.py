"""The processes and the port."""
