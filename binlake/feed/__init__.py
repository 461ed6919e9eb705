"""Feeds: row changes as messages in commit order, for consumers that need events instead of tables."""
