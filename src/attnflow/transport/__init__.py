"""Optimal transport: the bridge of a measure to itself, the flows it makes, distances."""
