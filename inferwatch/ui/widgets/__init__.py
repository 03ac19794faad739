"""Widgets that show our numbers, used by several screens."""
