"""Collectors of what inference servers report: metrics, traces, cache events."""
