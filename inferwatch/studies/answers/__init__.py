"""Whether two settings give the same answers, and how sure that is."""
