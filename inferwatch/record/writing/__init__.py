"""The recorder: takes readings without blocking, writes them in its own thread."""
