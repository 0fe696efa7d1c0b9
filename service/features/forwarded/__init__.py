"""Proxies that publish the service under another host, scheme and path."""
