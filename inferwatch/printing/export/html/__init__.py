"""One page that tells a session, for people without inferwatch."""
