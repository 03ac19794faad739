"""One live session: an engine's lives, its load, the record of both."""
