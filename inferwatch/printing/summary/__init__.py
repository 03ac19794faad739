"""Summaries of sessions and load runs, as JSON and as text."""
