"""Why requests and their tokens came late."""
