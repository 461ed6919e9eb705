"""Files of binlogs as TiDB's drainer writes them (db-type = "file") and its reparo reads them (tidb-binlog 1.7, 1.9).

`names.py` what the files are called, `framing.py` their records, `index.py` what Binlake writes beside them,
`reading.py` their transactions and DDL. Files of the original are read as well as Binlake's own.
"""
