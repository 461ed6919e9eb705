"""The lake of one replication: table definitions, control tables (written only through delta-rs) and the lock."""
