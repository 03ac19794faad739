"""The load screen: drive a server with requests."""
