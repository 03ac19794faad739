"""One request on a screen of its own."""
