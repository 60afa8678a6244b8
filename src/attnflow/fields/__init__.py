"""Velocities beside attention: perceptrons, layer norms, schedules in time, moving frames."""
