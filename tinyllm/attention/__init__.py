"""Attention over a paged KV cache: the protocol, a reference anyone can read, faster ones beside it."""
