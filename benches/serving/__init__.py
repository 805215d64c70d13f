"""Servers under the same loads by the same client: ``python -m benches.serving``."""
