"""What an engine does: requests, steps, KV cache, health, what watching it costs."""
