"""The checks of ``inferwatch doctor``, one module for each area."""
