"""The watcher's side of a probe: finding it, receiving its stream, turning limits."""
