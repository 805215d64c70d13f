"""The engine: a synchronous core on one executor thread, and the bridge to async streams."""
