"""Starts, watches and ends a vLLM server."""
