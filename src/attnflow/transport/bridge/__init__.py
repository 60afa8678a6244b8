"""Schrodinger bridges, of a measure to itself or to another."""
