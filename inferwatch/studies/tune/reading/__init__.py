"""A trial's session in numbers, and why to doubt them."""
