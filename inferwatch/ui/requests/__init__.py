"""The requests screen: why was this one slow?"""
