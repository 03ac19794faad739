"""Load as part of a session: the generator's process, its runs, their points."""
