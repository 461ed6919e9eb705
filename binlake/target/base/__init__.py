"""A base for the target: the rows of a dump, loaded as one guarded window up to the dump's commit_ts."""
