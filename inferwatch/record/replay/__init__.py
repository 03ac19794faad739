"""A recorded session as the screens see it: snapshots of any of its moments."""
