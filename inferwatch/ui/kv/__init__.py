"""The KV cache screen: who holds the memory?"""
