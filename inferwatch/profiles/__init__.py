"""Profiles of engine steps: traces of kernels and operators, tied to our steps."""
