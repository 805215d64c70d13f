"""Load on an OpenAI-compatible server: made, measured and written down."""
