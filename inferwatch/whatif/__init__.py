"""What a recorded session would have been with another setting."""
