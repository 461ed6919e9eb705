"""Reduces row changes to the net change of each key, or orders every change by commit."""
