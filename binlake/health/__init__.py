"""Whether a replication is well, what is wrong and what to do: the one computation for pages and commands."""
