"""Why was this one slow?"""
