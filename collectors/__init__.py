"""The lowest layer: the readings, and every source that reports them."""
