"""What is printed of a session or a load run: JSON objects and text."""
