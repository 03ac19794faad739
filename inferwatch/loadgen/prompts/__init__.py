"""Prompts: synthetic ones of exact lengths, from a dataset, and in conversations."""
