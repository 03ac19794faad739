"""The servers to watch: their addresses and credentials."""
