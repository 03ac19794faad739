"""Values over time and in windows: samples, bins, quantiles, intervals."""
