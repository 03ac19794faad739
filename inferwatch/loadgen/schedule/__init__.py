"""When it is asked: arrivals, traces, and a pace that may change."""
