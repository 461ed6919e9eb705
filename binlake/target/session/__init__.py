"""A connection to the target, and what its errors mean."""
