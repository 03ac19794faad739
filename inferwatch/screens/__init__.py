"""One screen, one question."""
