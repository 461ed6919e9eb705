"""The full load of a TiDB source: its tables as of one commit_ts, read by SQL, become the first windows of the lake."""
