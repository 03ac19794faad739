"""Which running servers are meant, and what it takes to get in."""
