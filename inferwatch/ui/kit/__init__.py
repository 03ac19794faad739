"""Widgets, keys and drawing that know nothing of engines or requests."""
