"""The stage compact: net changes."""
