"""The stage plan."""
