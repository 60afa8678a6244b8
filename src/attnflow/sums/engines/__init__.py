"""What evaluates a sum over keys, and how one is chosen."""
