"""The physical KV cache, batch building, the model's step and sampling."""
