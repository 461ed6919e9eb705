"""One pinned window on the target, exactly once: its segments in one of three modes."""
