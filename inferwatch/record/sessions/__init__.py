"""What people do with recorded sessions: list, name, delete, keep small."""
