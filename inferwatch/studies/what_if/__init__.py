"""What another setting would have made of the same requests: pure, no clock."""
