"""Exports sessions for other programs, and imports their results as sessions."""
