"""Runs a tune: engines, loads, and the records of its trials."""
