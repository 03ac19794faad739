"""Two profiles side by side: what has changed in a mean step, class by class."""
