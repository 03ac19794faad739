"""The ground floor: what a reading is, and every source that reports readings."""
