"""Studies of recordings: comparisons, tuning, and what-if predictions."""
