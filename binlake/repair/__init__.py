"""Is the target right, and what makes it right: verify and repair, and backfill of a range that has passed."""
