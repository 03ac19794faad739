"""Which runs are compared: what people type, and who was sent the same."""
