"""Checks whether two sides can be compared, one file per area."""
