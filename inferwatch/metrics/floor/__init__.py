"""How far steps are from what the hardware allows."""
