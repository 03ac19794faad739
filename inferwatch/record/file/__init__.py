"""The SQLite file itself: where it is, how it is opened, what may be wrong with it."""
