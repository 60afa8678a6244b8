"""Paths on disk."""
