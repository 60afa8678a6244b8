"""Measures that do not move: stationary measures, their branches and bifurcations."""
