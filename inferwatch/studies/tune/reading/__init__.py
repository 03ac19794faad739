"""Reads a trial's session into numbers, with reasons to doubt them."""
