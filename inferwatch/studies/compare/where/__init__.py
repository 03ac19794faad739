"""Finds when a metric changed most, and for which requests."""
