"""Where the time of all requests went, by cause and by bucket."""
