"""One session in numbers: which part of it, and what was measured there."""
