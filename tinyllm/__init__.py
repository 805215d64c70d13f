"""An asyncio-native engine that runs and serves causal language models on PyTorch."""
