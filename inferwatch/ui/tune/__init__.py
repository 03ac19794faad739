"""Which settings are best, and how sure is that?"""
