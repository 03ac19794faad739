"""The Model, which folds every reading and makes the snapshots of screens."""
