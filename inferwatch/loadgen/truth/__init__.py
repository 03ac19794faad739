"""A server with a known schedule, and how wrong a client is against it."""
