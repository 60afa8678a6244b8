"""The velocity: a law is a logit, a normalisation and a value; heads are averaged."""
