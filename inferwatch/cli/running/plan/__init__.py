"""What ``inferwatch plan`` does once its options are read."""
