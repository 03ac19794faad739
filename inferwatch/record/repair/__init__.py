"""Damaged files: what can be read is saved, the rest is counted."""
