"""Time: the one solver, the discrete stack, and the path of measures they return."""
