"""What an engine is: its configuration, size and memory."""
