"""HTTP, as client and as server, that no peer can hurt."""
