"""Exports what only inferwatch knows to Prometheus and to OpenTelemetry collectors."""
