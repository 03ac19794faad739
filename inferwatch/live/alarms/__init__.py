"""Alarm rules that are evaluated during a session, and what they trigger."""
