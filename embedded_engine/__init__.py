"""The probe inside a watched vLLM server, and everything that starts such a server."""
