"""The velocity: a law is a logit, a normalization and a value; heads are averaged."""
