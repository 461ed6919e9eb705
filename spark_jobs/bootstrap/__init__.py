"""The full load of a TiDB source: SQL reads its tables as of one commit_ts; they become the lake's first windows."""
