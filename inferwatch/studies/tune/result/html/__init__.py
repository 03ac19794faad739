"""A tune's result as one page."""
