"""A Model's state as bytes, and back: what checkpoints keep."""
