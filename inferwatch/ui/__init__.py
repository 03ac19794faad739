"""The Textual app: one folder a screen, and what the screens share."""
