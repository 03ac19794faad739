"""What all share: readings, the wire, clocks, and where sockets lie."""
