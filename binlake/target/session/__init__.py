"""A connection to the target, and the meaning of its errors."""
