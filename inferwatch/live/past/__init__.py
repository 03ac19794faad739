"""The earlier part of a session that is still being recorded."""
