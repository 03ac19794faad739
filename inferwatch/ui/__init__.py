"""The program on a screen: one folder a screen, and what they share."""
