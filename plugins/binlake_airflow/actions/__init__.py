"""What a person can do to a replication from its page: one table of actions, and the fields that each one asks for."""
