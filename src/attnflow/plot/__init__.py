"""One look for every figure."""
