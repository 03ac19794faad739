"""Questions asked of recordings: did it help, what is best, what if?"""
