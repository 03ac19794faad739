"""When requests are sent: arrivals, traces, and rates that may change."""
