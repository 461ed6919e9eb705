"""Remarks on the keys of DM for which nothing is written, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from binlake.extras.importing.report import Note

_RELAY: Note = ("none", "the pumps are the relay log: they keep every transaction until gc (binlake pump)")
_NO_CHECKER: Note = ("none", "a feeder retries for ever")
_SQL_LOAD: Note = ("none", "rows of a snapshot are replicated in windows, without files or an import mode")

TASK: Mapping[str, Note] = {
    "is-sharding": ("differs", "to merge several tables into one, a route is enough (docs/reference/filters.md)"),
    "strict-optimistic-shard-mode": (
        "differs",
        "not read; without `shard-mode`, diverging definitions stop the pipeline with an error that names the tables",
    ),
    "ignore-checking-items": (
        "differs",
        "`binlake feeder check` shows all items, and each failed check stops the feeder",
    ),
    "enable-heartbeat": ("none", "lag is measured by commit time (docs/operate/alerts.md)"),
    "heartbeat-update-interval": ("none", "there is no heartbeat table"),
    "heartbeat-report-interval": ("none", "there is no heartbeat table"),
    "timezone": ("taken", "TIMESTAMP is transferred and written as UTC; DDL keeps the time zone of its session"),
    "collation_compatible": (
        "differs",
        "as with `strict`, every table is created with the charset and collation it has at the source",
    ),
    "mariadb2tidb": ("differs", "DDL is written for the dialect of target.db-type (docs/understand/target-mapping.md)"),
    "shadow-table-rules": ("none", "gh-ost is recognised by its changelog table, pt-osc by its triggers"),
    "trash-table-rules": ("none", "gh-ost is recognised by its changelog table, pt-osc by its triggers"),
    "online-ddl-scheme": ("taken", "the tables of gh-ost and pt-osc are recognised"),
    "clean-dump-file": ("none", "a snapshot needs no files"),
    "ansi-quotes": ("taken", "DDL is parsed with the sql_mode of its session"),
    "remove-meta": ("none", "the position is the target's checkpoint; to change it, use `binlake checkpoint set`"),
    "experimental": ("none", "progress is stored in the target's own transactions"),
}

MYDUMPERS: Mapping[str, Note] = {
    "mydumper-path": ("none", "the feeder reads the snapshot itself"),
    "chunk-filesize": ("none", "a chunk has source.snapshot.chunk-rows rows"),
    "statement-size": ("none", "a transaction contains one chunk"),
    "skip-tz-utc": ("taken", "a snapshot is read in UTC"),
    "where": ("differs", "the snapshot has all rows; to drop rows, use [[expression-filter]] with insert-value-expr"),
    "extra-args": ("differs", "not read; [block-allow-list] chooses tables, and a snapshot is always consistent"),
}

LOADERS: Mapping[str, Note] = {
    "pool-size": ("differs", "a snapshot is applied like any other window, with target.worker-count connections"),
    "dir": ("none", "a snapshot needs no files"),
    "import-mode": _SQL_LOAD,
    "on-duplicate": ("differs", "a row of the snapshot replaces the target's row (`replace`)"),
    "on-duplicate-logical": ("differs", "a row of the snapshot replaces the target's row (`replace`)"),
    **dict.fromkeys(("sorting-dir-physical", "on-duplicate-physical", "disk-quota-physical", "checksum-physical",
                     "analyze", "range-concurrency", "compress-kv-pairs", "pd-addr", "security"), _SQL_LOAD),
}  # fmt: skip

SYNCERS: Mapping[str, Note] = {
    "meta-file": ("none", "the position is in the feeder's journal"),
    "queue-size": ("none", "window.max-bytes limits a window"),
    "checkpoint-flush-interval": ("differs", "each batch is recorded in the ledger in the batch's own transaction"),
    "max-retry": ("none", "airflow.retries is the number of retries of a task"),
    "auto-fix-gtid": ("none", "DM ignores it too"),
    "enable-gtid": ("none", "DM ignores it too; see enable-gtid of the source"),
    "disable-detect": ("none", "conflicts are always detected"),
    "enable-ansi-quotes": ("taken", "DDL is parsed with the sql_mode of its session"),
    "async-checkpoint-flush": ("none", "progress is stored in the target's own transactions"),
}

VALIDATORS: Mapping[str, Note] = {
    "worker-count": ("none", "after each window, one session reads each side"),
    "validate-interval": ("differs", "validation runs after each window, so airflow.schedule decides"),
    "check-interval": ("differs", "pending rows are compared again after each window"),
    "row-error-delay": ("differs", "a row counts as an error when positions in the log prove it, not after some time"),
    "meta-flush-interval": ("none", "each run writes the ledger"),
    "batch-query-size": ("none", "a query has 1000 keys"),
    "max-pending-row-size": (
        "none",
        "only a digest of a pending row is stored; validation.max-pending-rows is the limit",
    ),
    "start-time": ("none", "validation begins with the first applied window"),
}

TARGET: Mapping[str, Note] = {
    "max-allowed-packet": ("none", "it is queried from the target"),
    "session": ("differs", "Binlake always sets up the session: strict, UTC, utf8mb4 (docs/understand/apply.md)"),
}

SOURCE: Mapping[str, Note] = {
    "enable": ("none", "a feeder reads all of its sources"),
    "enable-gtid": ("taken", "GTIDs are used if the server writes them, else file and offset"),
    "auto-fix-gtid": ("none", "DM ignores it too"),
    "enable-relay": _RELAY,
    "relay-dir": _RELAY,
    "relay-binlog-name": _RELAY,
    "relay-binlog-gtid": _RELAY,
    "meta-dir": ("none", "the position is in the data-dir of feeder.toml"),
    "flavor": ("taken", "it is queried from the server"),
    "charset": ("none", "the log contains it"),
    "server-id": ("differs", "derived from the feeder's name; with DM's id, the source would disconnect DM"),
    "purge": ("none", "pumps delete old binlogs by their own setting `gc`"),
    "checker": _NO_CHECKER,
    "tracer": ("none", "DM ignores it too"),
}

FROM: Mapping[str, Note] = {
    "max-allowed-packet": ("none", "the log is read through the replication protocol"),
    "session": ("none", "the log is read through the replication protocol"),
}
