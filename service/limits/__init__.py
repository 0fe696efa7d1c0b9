"""Limits on what callers take: numbers of images and of connections, memory."""
