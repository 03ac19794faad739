"""Servers known only by what they count: scraped, traced, compared."""
