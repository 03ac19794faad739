"""The result of a tune, and its presentation."""
