"""Other hosts: SSH tunnels to them, and the agents that report their hardware."""
