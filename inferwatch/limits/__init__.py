"""What models cost and hardware allows: pure arithmetic, no readings, no clock."""
