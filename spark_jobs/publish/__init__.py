"""publish: sends the messages of a feed to its sink."""
