"""Other hosts: a tunnel to them, and the agent that tells of one."""
