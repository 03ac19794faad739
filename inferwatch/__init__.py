"""The product: arithmetic, storage, load, screens and commands."""

__version__ = "0.1.0"
