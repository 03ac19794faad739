"""Saved states of the Model along a session, so that seeking is quick."""
