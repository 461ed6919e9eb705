"""The stage validate."""
