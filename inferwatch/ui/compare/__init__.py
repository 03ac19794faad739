"""The comparison screen: did it get better, and could that be chance?"""
