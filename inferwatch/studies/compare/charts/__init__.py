"""The charts of a comparison: distributions, and both sides over time."""
