"""A server with a known schedule, to measure the error of the client."""
