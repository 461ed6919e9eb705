"""Loads a base into the target: the rows of a dump, as one guarded window up to the dump's commit_ts."""
