"""Finds the best engine settings by measuring them, and says how sure it is."""
