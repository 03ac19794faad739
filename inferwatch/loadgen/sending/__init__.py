"""A run: open or closed loop, calls in flight, the client's own accuracy."""
