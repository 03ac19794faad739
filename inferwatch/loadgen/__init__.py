"""The load generator: sends requests to a server on a schedule, in its own process."""
