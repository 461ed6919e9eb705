"""The DAGs of each replication file."""
