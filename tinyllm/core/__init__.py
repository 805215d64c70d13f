"""Scheduling and KV bookkeeping in pure Python: policy without tensors."""
