"""A live session: its clock, its pipeline, what it watches and loads."""
