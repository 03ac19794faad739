"""What carries requests: raw sockets where that applies, httpx elsewhere."""
