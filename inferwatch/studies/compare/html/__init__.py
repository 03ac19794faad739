"""A comparison as one page, both sides over each other."""
