"""Judges a set-up against a checklist, by what was seen of it."""
