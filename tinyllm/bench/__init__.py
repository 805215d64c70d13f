"""Measurements: of the engine, through its public face, and of the machine that it runs on."""
