"""HTTP clients and servers that untrusted peers cannot harm."""
