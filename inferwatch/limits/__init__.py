"""Costs of models and limits of hardware: pure arithmetic, no readings, no clock."""
