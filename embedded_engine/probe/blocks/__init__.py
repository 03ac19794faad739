"""Sends who holds which KV block, as changes."""
