"""How full is the KV cache?"""
