"""Collectors of load generators' readings."""
