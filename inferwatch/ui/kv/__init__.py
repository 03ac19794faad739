"""Who holds the memory?"""
