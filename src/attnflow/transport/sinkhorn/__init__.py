"""Sinkhorn scaling of a kernel to given marginals."""
