"""How far is it from what the hardware allows, and what binds?"""
