"""Drive it."""
