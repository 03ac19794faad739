"""Who holds the KV cache, what is reused, how long it will last."""
