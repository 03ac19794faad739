"""Predicts a recorded load under other settings: pure functions, without a clock."""
