"""The instrument inside a watched vLLM server, and whatever starts such a server."""
