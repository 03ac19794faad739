"""The record: one SQLite file, one writer thread."""
