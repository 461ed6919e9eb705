"""Binlog files brought back to a database, or printed: what the original's reparo does, exactly once."""
