"""The limits screen: how far is it to what the hardware allows, and what binds?"""
