"""Statistics: significance of one metric, of repeated runs, and of all metrics."""
