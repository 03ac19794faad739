"""What a named stress scenario found: numbers, and the one sentence they mean."""
