"""Weights: where they come from, the files that hold them, and what is done to them before packing."""
