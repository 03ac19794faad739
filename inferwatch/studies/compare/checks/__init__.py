"""What makes a comparison doubtful or void: a file an area, a check a subject."""
