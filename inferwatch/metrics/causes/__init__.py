"""Causes of slow requests and late tokens."""
