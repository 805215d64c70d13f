"""Where a model's files come from, and the checks they pass before anything is allocated."""
