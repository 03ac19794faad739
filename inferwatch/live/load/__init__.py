"""Load on a watched server: our own runs, and those that others started."""
