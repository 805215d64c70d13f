"""Tokens to text and back: tokenizer, incremental detokeniser, stop strings, chat template."""
