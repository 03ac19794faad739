"""What the GPUs do, or why nothing can be said about them."""
