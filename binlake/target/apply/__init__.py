"""Applies one pinned window to the target exactly once, each segment in one of three modes."""
