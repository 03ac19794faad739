"""The screens before an engine runs: what can be started, and how far it is."""
