"""Checks whether the target is right and repairs it: verify and repair, and backfill of a past range."""
