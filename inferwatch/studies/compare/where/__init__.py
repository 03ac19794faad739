"""When and for whom a metric changed most."""
