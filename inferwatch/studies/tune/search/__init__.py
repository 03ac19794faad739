"""What to measure next, and who stands where."""
