"""How much load a server sustains, and how it does at parts of that."""
