"""Results of other load generators, read as what a client saw."""
