"""The client, its jobs, and how their calls travel."""
