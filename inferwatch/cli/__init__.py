"""One module per command; imports wait until a command needs them."""
