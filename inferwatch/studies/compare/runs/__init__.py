"""Finds the runs to compare from what the user typed, and pairs them."""
