"""publish: the messages of a feed to where its consumers read them."""
