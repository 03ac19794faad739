"""Carries a tune out: engines, loads, and what is kept of each trial."""
