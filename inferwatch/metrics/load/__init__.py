"""What a load run found: its client's latencies, SLOs, goodput, cross-check."""
