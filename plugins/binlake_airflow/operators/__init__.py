"""Operators: each runs one stage or command in a process of its own."""
