"""Traces of profiles beside the record, and what is read of them."""
