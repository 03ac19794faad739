"""Is it all right, and if not, what binds?"""
