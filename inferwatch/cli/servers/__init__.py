"""The servers to watch: their addresses, and what it takes to be let in."""
