"""The lake's tables that more than one stage reads or writes: net changes, statements, what is pinned."""
