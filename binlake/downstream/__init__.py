"""The SQL target: sessions, the checkpoint and who may write it, definitions, and applying a window exactly once.

Every write goes through `apply_window`; everything else here reads, or is a part of it.
"""
