"""What request bodies may say: one module for each endpoint family."""
