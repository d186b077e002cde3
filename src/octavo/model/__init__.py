"""Architectures as data: the facts of a model, the names of its weights, and the decoder that reads both."""
