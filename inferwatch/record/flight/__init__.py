"""A record of what led to something: kept in memory until it is wanted."""
