"""Arrays, small matrices and special functions: what every room computes with."""
