"""GPU readings, or the reason why there are none."""
