"""Did it get better, and could that be chance?"""
