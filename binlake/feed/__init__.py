"""Feeds: row changes as messages in commit order, for consumers that want events and not tables."""
