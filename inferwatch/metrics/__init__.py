"""Pure arithmetic: readings in, one frozen snapshot out; no clock, no I/O."""
