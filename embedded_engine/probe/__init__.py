"""The instrument: it observes the scheduler and the front end, and never harms them."""
