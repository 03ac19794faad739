"""Objectives: the limits that requests must meet, and how many do."""
