"""The SQLite file: its location, how it is opened, and what may be wrong with it."""
