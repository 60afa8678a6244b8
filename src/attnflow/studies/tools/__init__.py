"""What studies are made of: checks, kept parts, fits, drawings."""
