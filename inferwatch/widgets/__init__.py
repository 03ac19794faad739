"""What screens are made of; each speaks in its own messages."""
