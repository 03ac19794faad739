"""How close the duration of steps is to the limits of the hardware."""
