"""Traces for ui.perfetto.dev: requests, steps and counters on one time axis."""
