"""The past of a session that still runs."""
