"""One request and its response: transports, streamed events, timestamps."""
