"""One worker for each engine: run with ``python -m benches.peers.NAME`` in the engine's environment."""
