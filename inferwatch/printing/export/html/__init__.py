"""A session as one HTML page, for people without inferwatch."""
