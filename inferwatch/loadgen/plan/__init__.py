"""A load plan: its fields, their bounds and their textual forms."""
