"""The terminal below Textual: only cells that changed are written."""
