"""A terminal dashboard and recorder for vLLM servers, with its load generator."""

__version__ = "0.1.0"
