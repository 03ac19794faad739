"""Named loads, each of which answers one question about a server."""
