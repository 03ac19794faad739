"""Limits of a running engine: what they are, what others would do, and turning them."""
