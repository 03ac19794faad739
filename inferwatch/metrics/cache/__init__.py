"""The KV cache: which requests hold it, what is reused, how long it will last."""
