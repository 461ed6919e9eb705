"""The pump: keeps binlogs durable and in order, and serves complete transactions to consumers.

The way of a binlog: service -> value log (fsync, ack) -> index -> sorter -> watermark -> pull (tidb-binlog 2).
"""
