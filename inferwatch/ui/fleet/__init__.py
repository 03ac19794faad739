"""All servers of a session side by side."""
