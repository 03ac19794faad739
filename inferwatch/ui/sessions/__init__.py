"""The sessions screen: what happened before?"""
