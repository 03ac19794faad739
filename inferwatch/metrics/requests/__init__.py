"""Requests: their latencies, objectives and causes of delay."""
