"""Metrics: pure arithmetic from readings to one frozen snapshot; no clock, no I/O."""
