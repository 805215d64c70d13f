"""Kernels in C, built on first use where there is a compiler; everything also runs without them."""
