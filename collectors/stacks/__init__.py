"""What the threads of a process are executing, read from outside or by its probe."""
