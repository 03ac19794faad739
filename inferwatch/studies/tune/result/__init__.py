"""What a tune came to, and how it is told."""
