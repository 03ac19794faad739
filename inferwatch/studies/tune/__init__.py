"""Finds the best settings of an engine by measuring them, and proves it."""
