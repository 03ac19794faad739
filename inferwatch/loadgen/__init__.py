"""Drives a server from a schedule, in a process of its own."""
