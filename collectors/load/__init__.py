"""What load generators tell."""
