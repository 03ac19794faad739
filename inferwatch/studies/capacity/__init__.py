"""How many GPUs hold objectives at a rate of requests."""
