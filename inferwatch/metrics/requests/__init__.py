"""Every request: its latencies, its objectives, and what slowed it."""
