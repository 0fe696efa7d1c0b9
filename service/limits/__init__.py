"""Limits on callers: keys, rates, numbers of images, memory, addresses to fetch from."""
