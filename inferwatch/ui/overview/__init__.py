"""The overview screen: is it all right, and if not, what binds?"""
