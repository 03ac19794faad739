"""A load plan: its fields, their bounds, and how people write them."""
