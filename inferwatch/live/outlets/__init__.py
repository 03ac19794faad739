"""What only we know, for the Prometheus or OpenTelemetry that people run already."""
