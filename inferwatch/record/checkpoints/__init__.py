"""Saved states along a session, so that any moment is near one."""
