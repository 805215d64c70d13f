"""Whether tinyllm and other engines choose the same tokens."""
