"""Diagnoses: what is wrong, how we know, which knob to turn, what that costs."""
