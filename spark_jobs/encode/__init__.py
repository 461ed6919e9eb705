"""encode: row changes as messages of a feed."""
