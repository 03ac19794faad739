"""Limits that are changed while the engine runs."""
