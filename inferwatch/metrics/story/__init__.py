"""One request told whole: where its time went, and why tokens came late."""
