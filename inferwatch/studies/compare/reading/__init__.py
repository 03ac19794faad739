"""Reads one session into numbers: which part of it counts, and what was measured."""
