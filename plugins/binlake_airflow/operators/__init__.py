"""Operators: each runs one stage or command in its own process."""
