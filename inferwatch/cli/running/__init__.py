"""What commands do once their options are read; imported no earlier."""
