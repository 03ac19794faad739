"""Wraps the scheduler and the front end, and makes readings of their calls."""
