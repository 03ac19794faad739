"""Load on a watched server: ours, and that which others started."""
