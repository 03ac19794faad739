"""Servers without a probe: scraped, traced, compared."""
