"""Two sessions side by side, and whether what differs could be chance."""
