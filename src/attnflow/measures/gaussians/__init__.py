"""Gaussians and their mixtures, with their closed forms."""
