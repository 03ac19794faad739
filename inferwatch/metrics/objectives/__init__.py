"""What requests are to hold, all at once, and how many do."""
