"""A set-up against a checklist: a dialog over Limits."""
