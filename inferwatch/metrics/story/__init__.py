"""The story of one request: where its time went, and why tokens came late."""
