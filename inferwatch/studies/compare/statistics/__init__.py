"""How sure a difference is: of one row, of repeated runs, of all rows."""
