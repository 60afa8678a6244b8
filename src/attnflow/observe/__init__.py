"""What to look at along a path."""
