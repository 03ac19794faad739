"""What does the scheduler do?"""
