"""One request and its answer: transports, streamed events, stamps."""
