"""Operator's commands for pumps and consumers, with the names and behaviour of binlogctl (tidb-binlog 3.4)."""
