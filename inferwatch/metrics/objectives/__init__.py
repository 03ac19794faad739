"""Objectives: what requests must meet, and how many do."""
