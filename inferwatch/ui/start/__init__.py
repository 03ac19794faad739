"""Nothing runs yet: what can be done, and how far is it?"""
