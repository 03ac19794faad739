"""What happened before?"""
