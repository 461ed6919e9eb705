"""The stage plan: proposes the next window."""
