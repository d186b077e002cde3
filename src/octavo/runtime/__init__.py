"""Turns a batch into arrays, runs the model, and hands back what was sampled."""
