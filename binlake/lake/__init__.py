"""The lake: table definitions, control tables (written through delta-rs only) and the lock of one replication."""
