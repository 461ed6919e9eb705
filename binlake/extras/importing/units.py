"""Converts the settings of DM's processing units, syncer and validator, to settings of the SQL sink.

Keys of DM for which nothing is written get a remark with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from binlake.extras.importing.document import DocumentEntry, ImportOutcome, Note, say_notes, set_value

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


UNIT_KEYS: Mapping[str, tuple[str, ...]] = {
    "mydumper": (*MYDUMPERS, "threads", "rows"),
    "loader": tuple(LOADERS),
    "syncer": (*SYNCERS, "worker-count", "batch", "compact", "multiple-rows", "safe-mode", "safe-mode-duration"),
    "validator": (*VALIDATORS, "mode", "max-pending-row-count"),
}
_UNBOUNDED = (1 << 31) - 1
"""DM's default of `max-pending-row-count`."""
_UNITS_OF_TIME = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|us|µs|ns|m|s)")


def find_unit(
    task: Mapping[str, DocumentEntry], instance: Mapping[str, DocumentEntry], unit: str
) -> DocumentEntry | None:
    """The settings of a unit for an instance: its own, or those that it names in the task. Raises ConfigError."""
    if unit in instance:
        return instance[unit]
    named = instance.get(f"{unit}-config-name")
    if named is None or not named.read_text():
        return None
    sets = task[f"{unit}s"].read_mapping() if f"{unit}s" in task else {}
    if named.read_text() not in sets:
        known = ", ".join(sorted(sets)) or "none"
        raise named.build_error(f"`{unit}s` has no {named.read_text()!r}", f"known: {known}")
    return sets[named.read_text()]


def take_syncer(outcome: ImportOutcome, entry: DocumentEntry | None, *, thread: DocumentEntry | None) -> None:
    """Take worker-count, batch, compact, multiple-rows, safe-mode and its duration. Raises ConfigError."""
    keys = {} if entry is None else entry.read_table(UNIT_KEYS["syncer"])
    for name, key in (("worker-count", "target.worker-count"), ("batch", "target.txn-batch")):
        if name in keys:
            outcome.take(keys[name], key, keys[name].read_number())
    if thread is not None and thread.read_number():
        outcome.take(thread, "target.worker-count", thread.read_number())
    if "compact" in keys:
        _take_compact(outcome, keys["compact"])
    if "multiple-rows" in keys:
        outcome.take(keys["multiple-rows"], "target.multiple-rows", keys["multiple-rows"].read_boolean())
    _take_safe_mode(outcome, keys)
    say_notes(outcome, keys, SYNCERS)


def _take_compact(outcome: ImportOutcome, entry: DocumentEntry) -> None:
    """All modes except `ordered` merge the changes of a key."""
    if entry.read_boolean():
        outcome.take(entry, "target.mode", "parallel")
    else:
        outcome.take(entry, "target.mode", "ordered")


def _take_safe_mode(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry]) -> None:
    is_on = keys["safe-mode"].read_boolean() if "safe-mode" in keys else False
    filtered = bool(outcome.replication.get("filters") or outcome.replication.get("expression-filter"))
    ordered = outcome.replication["target"].get("mode") == "ordered"
    mode = "always" if is_on or (ordered and filtered) else "auto"
    outcome.replication["target"]["safe-mode"] = mode
    if "safe-mode" in keys:
        same = is_on or mode == "auto"
        why = "" if same else ": mode ordered with filters of rows always needs REPLACE"
        outcome.say(keys["safe-mode"], "taken" if same else "differs", f'target.safe-mode = "{mode}"{why}')
    if "safe-mode-duration" in keys:
        outcome.take(
            keys["safe-mode-duration"], "target.safe-mode-duration-s", parse_duration(keys["safe-mode-duration"])
        )


def take_validator(outcome: ImportOutcome, entry: DocumentEntry) -> None:
    """Take continuous validation of all rows that windows change. Raises ConfigError."""
    keys = entry.read_table(UNIT_KEYS["validator"])
    mode = keys["mode"].read_text() if "mode" in keys else "none"
    if mode not in ("none", "fast", "full"):
        raise keys["mode"].build_error(f"unknown mode {mode!r}", "use none, fast or full")
    if mode == "none" and "mode" in keys:
        outcome.say(keys["mode"], "taken", "nothing is compared")
    elif mode == "full":
        outcome.take(keys["mode"], "validation.mode", "full")
    elif mode == "fast":
        set_value(outcome.replication, "validation.mode", "full")
        outcome.say(keys["mode"], "differs", 'validation.mode = "full": values are compared too, not only which rows'
                    " exist")  # fmt: skip
    if "max-pending-row-count" in keys:
        _take_max_pending(outcome, keys["max-pending-row-count"])
    say_notes(outcome, keys, VALIDATORS)


def take_validated_sources(outcome: ImportOutcome) -> None:
    """Use the feeder's servers for validation, once they are known."""
    if "mode" in outcome.replication.get("validation", {}):
        keys = ("name", "host", "port", "user", "password", "security", "rename-schema")
        set_value(outcome.replication, "validation.source", [
            {"host": "127.0.0.1"} | {name: source[name] for name in keys if name in source}
            for source in outcome.feeder["source"]
        ])  # fmt: skip


def _take_max_pending(outcome: ImportOutcome, entry: DocumentEntry) -> None:
    if entry.read_number() >= _UNBOUNDED:
        outcome.say(entry, "differs", "this value is no limit in DM; validation.max-pending-rows has its default")
    else:
        outcome.take(entry, "validation.max-pending-rows", entry.read_number())


def parse_duration(entry: DocumentEntry) -> float:
    """Parse a duration as Go writes it, such as 1m30s. Raises ConfigError."""
    text = entry.read_text()
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise entry.build_error(f"{text!r} is not a duration", "write 60s or 1m30s")
    return sum(float(number) * _UNITS_OF_TIME[unit] for number, unit in parts)
