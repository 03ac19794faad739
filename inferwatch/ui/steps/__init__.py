"""The steps screen: what does the scheduler do?"""
