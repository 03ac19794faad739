"""Recording that starts in the past: readings are kept in memory until needed."""
