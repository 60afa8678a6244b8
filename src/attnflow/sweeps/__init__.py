"""Many runs at once: every point of a grid of parameters, from many seeds."""
