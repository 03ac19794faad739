"""GPUs and hosts, and how the engine uses them."""
