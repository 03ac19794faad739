"""Readings as rows, and rows as readings: the schema and its tables."""
