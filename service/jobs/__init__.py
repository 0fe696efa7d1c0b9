"""Many images in one request: accepted, kept, worked on when there is time, looked up later."""
