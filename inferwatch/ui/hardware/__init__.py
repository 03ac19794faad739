"""The screen of GPUs and hosts."""
