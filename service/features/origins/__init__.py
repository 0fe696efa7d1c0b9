"""The hosts and the web pages through which requests may come."""
