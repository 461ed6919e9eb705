"""Access to lake tables that more than one stage reads or writes: net changes, statements, pinned windows."""
