"""What is asked: prompts of an exact length, of a data set, of conversations."""
