"""How close steps are to the limits of the hardware."""
