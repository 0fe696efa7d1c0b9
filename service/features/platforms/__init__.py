"""Adapters of serving platforms' contracts to the routes of the service."""
