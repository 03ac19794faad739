"""Results of load runs: client latencies, SLOs, goodput, cross-check."""
