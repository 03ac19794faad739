"""What if the engine were set otherwise: a dialog over any screen of a session."""
