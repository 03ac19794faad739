"""Damaged files: readable rows are saved, the rest is counted."""
