"""A backend in another process: what serves it, and what calls it through a Unix socket."""
