"""A session with an engine that we start."""
