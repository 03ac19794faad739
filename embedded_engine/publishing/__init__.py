"""Sends readings to whoever watches, on this host or elsewhere."""
