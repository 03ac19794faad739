"""What inference servers tell of themselves: metrics, traces, cache events."""
