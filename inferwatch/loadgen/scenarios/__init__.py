"""Named loads that put one question to a server each."""
