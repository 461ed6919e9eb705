"""Applies binlog files to a database, or prints them: like the original's reparo, but exactly once."""
