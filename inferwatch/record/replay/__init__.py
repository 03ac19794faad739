"""A recorded session as the screens see it: any moment of it, in the same pictures."""
