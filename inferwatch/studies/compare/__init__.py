"""Compares sessions, and judges which differences could be chance."""
