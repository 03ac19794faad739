"""Rules that are looked at while a session goes on, and what happens when one holds."""
