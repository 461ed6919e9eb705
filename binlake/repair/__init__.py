"""Checks the target and repairs it: verify and repair, continuous validation, and backfill of a past range."""
