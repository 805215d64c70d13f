"""The command line: thin clients of the engine."""
