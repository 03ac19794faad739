"""Tenants: who asks for how much, and who makes whom wait."""
