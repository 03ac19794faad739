"""What surrounds a screen: header, time line, playback, drawers."""
