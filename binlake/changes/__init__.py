"""Reduce row changes to the net change of each key, or order all changes by commit."""
