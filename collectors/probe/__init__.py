"""A probe's readings, as a watcher receives them: hello, streams, nothing twice."""
