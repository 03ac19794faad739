"""What GPUs and hosts do, and what of it concerns the engine."""
