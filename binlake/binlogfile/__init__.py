"""Binlog files as TiDB's drainer writes them (db-type = "file") and its reparo reads them (tidb-binlog 1.7, 1.9).

`names.py` has the file names, `framing.py` the records, `index.py` the index that Binlake writes next to the files,
`reading.py` their transactions and DDL. Both the drainer's files and Binlake's can be read.
"""
