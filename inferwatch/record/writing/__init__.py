"""The recorder: accepts readings without blocking, writes them in its own thread."""
