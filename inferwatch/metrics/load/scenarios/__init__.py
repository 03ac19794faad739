"""Findings of the named stress scenarios: numbers, and a sentence."""
