"""Who holds which KV block, sent as changes."""
