"""Measures that do not move: stationary ones, their branches and bifurcations."""
