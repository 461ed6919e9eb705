"""Remarks on the keys of DM that nothing is written for, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from binlake.config.importing.report import Note

_RELAY: Note = ("none", "the pumps are the relay log: every transaction is kept there until gc (binlake pump)")
_NO_CHECKER: Note = ("none", "a feeder tries again by itself, for ever")
_SQL_LOAD: Note = ("none", "rows of a snapshot travel as windows: no files, no import mode")

TASK: Mapping[str, Note] = {
    "is-sharding": ("differs", "several tables in one need no switch: a route does it (docs/reference/filters.md)"),
    "strict-optimistic-shard-mode": (
        "differs",
        "not read: without `shard-mode` shapes that part stop the pipeline and name the tables",
    ),
    "ignore-checking-items": ("differs", "`binlake feeder check` shows them all; what it refuses stops the feeder"),
    "enable-heartbeat": ("none", "lag is measured by commit time (docs/operate/alerts.md)"),
    "heartbeat-update-interval": ("none", "there is no heartbeat table"),
    "heartbeat-report-interval": ("none", "there is no heartbeat table"),
    "timezone": ("taken", "TIMESTAMP travels and is written as UTC; DDL keeps the time zone of its session"),
    "collation_compatible": (
        "differs",
        "every table is made with the charset and collation of its source, as `strict`",
    ),
    "mariadb2tidb": ("differs", "DDL is written for the dialect of target.db-type (docs/understand/target-mapping.md)"),
    "shadow-table-rules": ("none", "gh-ost's and pt-osc's own names are known: ^_(.+)_(?:new|gho)$"),
    "trash-table-rules": ("none", "gh-ost's and pt-osc's own names are known: ^_(.+)_(?:ghc|del|old)$"),
    "online-ddl-scheme": ("taken", "the tables of gh-ost and pt-osc are recognised"),
    "clean-dump-file": ("none", "a snapshot makes no files"),
    "ansi-quotes": ("taken", "DDL is read with the sql_mode of its session"),
    "remove-meta": ("none", "the position is the target's checkpoint: `binlake checkpoint set`"),
    "experimental": ("none", "progress is in the target's own transactions"),
}

MYDUMPERS: Mapping[str, Note] = {
    "mydumper-path": ("none", "the feeder reads the snapshot itself"),
    "chunk-filesize": ("none", "a chunk has source.snapshot.chunk-rows rows"),
    "statement-size": ("none", "a transaction carries one chunk"),
    "skip-tz-utc": ("taken", "a snapshot is read in UTC"),
    "where": ("differs", "the snapshot has all rows: [[expression-filter]] with insert-value-expr drops rows"),
    "extra-args": ("differs", "not read: [block-allow-list] chooses tables; a snapshot is always consistent"),
}

LOADERS: Mapping[str, Note] = {
    "pool-size": ("differs", "a snapshot is applied like any window, by target.worker-count connections"),
    "dir": ("none", "a snapshot makes no files"),
    "import-mode": _SQL_LOAD,
    "on-duplicate": ("differs", "a row of the snapshot replaces what the target has (`replace`)"),
    "on-duplicate-logical": ("differs", "a row of the snapshot replaces what the target has (`replace`)"),
    **dict.fromkeys(("sorting-dir-physical", "on-duplicate-physical", "disk-quota-physical", "checksum-physical",
                     "analyze", "range-concurrency", "compress-kv-pairs", "pd-addr", "security"), _SQL_LOAD),
}  # fmt: skip

SYNCERS: Mapping[str, Note] = {
    "meta-file": ("none", "the feeder's journal has the position"),
    "queue-size": ("none", "a window is bounded by window.max-bytes"),
    "checkpoint-flush-interval": ("differs", "each batch is in the ledger in its own transaction, at once"),
    "max-retry": ("none", "airflow.retries says how often a task is tried again"),
    "auto-fix-gtid": ("none", "DM ignores it, too"),
    "enable-gtid": ("none", "DM ignores it, too: see enable-gtid of the source"),
    "disable-detect": ("none", "conflicts are always detected"),
    "enable-ansi-quotes": ("taken", "DDL is read with the sql_mode of its session"),
    "async-checkpoint-flush": ("none", "progress is in the target's own transactions"),
}

VALIDATORS: Mapping[str, Note] = {
    "worker-count": ("none", "one session reads each side, after each window"),
    "validate-interval": ("differs", "after each window: airflow.schedule"),
    "check-interval": ("differs", "rows that wait are compared again after each window"),
    "row-error-delay": ("differs", "a row is an error when places of the log prove it, not after a time"),
    "meta-flush-interval": ("none", "the ledger is written by each run"),
    "batch-query-size": ("none", "a query has 1000 keys"),
    "max-pending-row-size": ("none", "of a pending row a digest is kept: validation.max-pending-rows bounds it"),
    "start-time": ("none", "it begins with the first window that is applied"),
}

TARGET: Mapping[str, Note] = {
    "max-allowed-packet": ("none", "the target is asked for it"),
    "session": ("differs", "the session is Binlake's own: strict, UTC, utf8mb4 (docs/understand/apply.md)"),
    "security": ("none", "TLS to the target is used where the server offers it, without a certificate of its own"),
}

SOURCE: Mapping[str, Note] = {
    "enable": ("none", "a feeder reads all of its sources"),
    "enable-gtid": ("taken", "GTIDs are used wherever the server writes them, else file and offset"),
    "auto-fix-gtid": ("none", "DM ignores it, too"),
    "enable-relay": _RELAY,
    "relay-dir": _RELAY,
    "relay-binlog-name": _RELAY,
    "relay-binlog-gtid": _RELAY,
    "meta-dir": ("none", "feeder.toml's data-dir has the position"),
    "flavor": ("taken", "the server says it itself"),
    "charset": ("none", "the log says it itself"),
    "server-id": ("differs", "made from the feeder's name: a source ends DM's connection when another has its id"),
    "purge": ("none", "pumps collect by their own `gc`"),
    "checker": _NO_CHECKER,
    "tracer": ("none", "DM ignores it, too"),
}

FROM: Mapping[str, Note] = {
    "max-allowed-packet": ("none", "the log is read by the replication protocol"),
    "session": ("none", "the log is read by the replication protocol"),
}
