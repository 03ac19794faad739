"""The dialog for limits of a running engine: present values, predictions, changes."""
