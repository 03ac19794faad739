"""Management of recorded sessions: listing, naming, deleting, pruning."""
