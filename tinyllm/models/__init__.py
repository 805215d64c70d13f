"""One readable file per architecture, shared layers, and weight loading."""
