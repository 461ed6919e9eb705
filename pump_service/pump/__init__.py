"""The pump: stores binlogs durably and in order, and serves complete transactions to consumers.

A binlog's path: service -> value log (fsync, ack) -> index -> sorter -> watermark -> pull (tidb-binlog 2).
"""
