"""Limits on callers: keys, rates, numbers of images, memory."""
