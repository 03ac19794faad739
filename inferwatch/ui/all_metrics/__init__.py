"""All metrics that a server exposes, whether we know them or not."""
