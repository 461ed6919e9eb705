"""Commands of an operator over pumps and consumers: the names and habits of binlogctl (tidb-binlog 3.4)."""
