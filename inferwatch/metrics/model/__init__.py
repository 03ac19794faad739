"""Folds every reading, and makes the snapshot that screens show."""
