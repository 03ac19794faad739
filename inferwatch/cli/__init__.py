"""The commands, one module each; imports wait until a command needs them."""
