"""The HTTP server: OpenAI's protocol over an `AsyncEngine`, on Quart."""
