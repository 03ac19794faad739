"""A session with servers that run already."""
