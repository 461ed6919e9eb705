"""The pump: stores binlogs durably and in order, and serves complete transactions to consumers (tidb-binlog 2).

The files in the order of a binlog's life (docs/understand/pump-storage.md): `lean_server` receives it, `service` and
`future_timestamps` check it, `groupcommit` writes it to `vlog` (`record`, `heads`: its bytes) with one fsync and
acknowledges it, `follower` puts it into `index` and `sorter`, which raise the watermark; `outcomes` ends a P without C
or R; `pulls`, `pull`, `ranges`, `live_feed` and `batches` send it; `retention` removes it. `storage` holds these
together over a data `directory`, which `recovery` checks at a start. `server` is a pump from start to end: its
`membership`, `clients`, `pages` and `metrics`. `command`, `settings` and `config` are its outside.
"""
