"""The tune screen: which settings are best, and how sure is that?"""
