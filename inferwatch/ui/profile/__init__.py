"""A profile over any screen: what it costs, how far it is, where steps spend time."""
