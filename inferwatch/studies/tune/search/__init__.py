"""Decides what to measure next, and ranks the settings."""
