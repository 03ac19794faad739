"""What all collectors share: readings, the wire format, clocks, where sockets are."""
