"""Sessions for other programs, and other programs' results as sessions."""
