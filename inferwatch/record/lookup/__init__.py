"""Answers single questions from a recording."""
