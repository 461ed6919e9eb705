"""Converts the drainer's `drainer.toml` to a replication's TOML.

Rule: the report has a line about each key; a downstream without a counterpart is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from binlake.config.sinkuri import COMPRESSED
from binlake.extras.importing.document import DocumentEntry, ImportOutcome, Note, say_notes

_NO_SERVER: Note = ("none", "stages are tasks, not a server; Airflow and the registry show metrics and state")
_NODE: Mapping[str, Note] = {
    **dict.fromkeys(("addr", "advertise-addr", "node-id", "metrics-addr", "metrics-interval"), _NO_SERVER),
    **dict.fromkeys(("log-level", "log-file", "log-rotate"), ("none", "Airflow keeps the logs of tasks")),
    "data-dir": ("none", "the checkpoint is in the target, all other state is in the lake"),
    "detect-interval": ("none", "each window reads the list of pumps from the registry"),
    "compressor": ("none", "pumps send blocks as they are stored"),
    "sql-mode": ("differs", "DDL is parsed with the sql_mode of its session"),
    "synced-check-time": ("none", "lag is a metric (docs/operate/alerts.md)"),
    "cache-binlog-count": ("none", "window.max-bytes limits a window"),
}
_SYNCER: Mapping[str, Note] = {
    "sql-mode": ("differs", "DDL is parsed with the sql_mode of its session"),
    "enable-detect": ("none", "conflicts are always detected"),
    "disable-detect": ("none", "conflicts are always detected"),
    "load-schema-snapshot": ("none", "definitions come from the source's DDL history"),
    "queue-size": ("none", "window.max-bytes limits a window"),
}
_TO: Mapping[str, Note] = {
    "params": ("differs", "Binlake always sets up the session: strict, UTC, utf8mb4 (docs/understand/apply.md)"),
    "read-timeout": ("none", "TCP keepalive detects a dead connection"),
    "time-zone": ("taken", "TIMESTAMP is written as UTC"),
    "zookeeper-addrs": ("none", "kafka-addrs names the brokers"),
    "kafka-version": ("none", "the client negotiates the version with the brokers"),
    "kafka-max-messages": ("none", "the client batches messages"),
}
_TARGET_KEYS = (
    "host", "port", "user", "password", "encrypted_password", "security", "merge", "sync-mode", "checkpoint",
)  # fmt: skip
_FILE_KEYS = ("dir", "retention-time", "compression")
_TO_KEYS = (*_TO, *_TARGET_KEYS, *_FILE_KEYS, "kafka-addrs", "kafka-max-message-size", "kafka-client-id", "topic-name")
_LISTS = ("ignore-schemas", "ignore-table", "replicate-do-db", "replicate-do-table", "ignore-txn-commit-ts")
_SYNCER_KEYS = (*_SYNCER, *_LISTS, "txn-batch", "worker-count", "db-type", "sync-ddl", "safe-mode", "enable-dispatch",
                "disable-dispatch", "loopback-control", "channel-id", "case-sensitive", "table-migrate-rule",
                "binlog-filter-rule", "relay", "to")  # fmt: skip
_ROOT_KEYS = (*_NODE, "pd-urls", "initial-commit-ts", "security", "syncer")
_CHECKPOINT_KEYS = ("type", "schema", "table", "host", "port", "user", "password", "encrypted_password", "security")


def import_drainer(file: DocumentEntry, *, name: str, lake: str, status_url: str) -> ImportOutcome:
    """Convert a drainer's configuration to a replication. Raises ConfigError."""
    outcome = ImportOutcome({"name": name, "source": {"status-url": status_url}, "lake": {"path": lake}})
    keys = file.read_table(_ROOT_KEYS)
    say_notes(outcome, keys, _NODE)
    if entry := keys.get("pd-urls"):
        outcome.take(entry, "source.pd-urls", entry.read_text())
    if entry := keys.get("initial-commit-ts"):
        outcome.take(entry, "initial-commit-ts", entry.read_text())
    _take_security(outcome, keys)
    _take_syncer(outcome, keys["syncer"].read_table(_SYNCER_KEYS) if "syncer" in keys else {})
    return outcome


def _take_security(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry], section: str = "source") -> None:
    files = (
        keys["security"].read_table(("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn")) if "security" in keys else {}
    )
    for name, entry in files.items():
        if name == "cert-allowed-cn":
            outcome.say(entry, "none", "stages accept no connections")
        elif entry.read_text():
            outcome.take(entry, f"{section}.security.{name}", entry.read_text())


def _take_syncer(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry]) -> None:
    say_notes(outcome, keys, _SYNCER)
    for name in _LISTS:
        if name in keys:
            outcome.take(keys[name], f"filter.{name}", _read_list(keys[name]))
    if rules := _read_event_rules(keys):
        outcome.replication["filters"] = rules
        outcome.say(keys["table-migrate-rule"], "taken", "[[filters]]")
    for name in ("loopback-control", "channel-id", "sync-ddl"):
        if name in keys:
            value = keys[name].read_number() if name == "channel-id" else keys[name].read_boolean()
            outcome.take(keys[name], f"loopback.{name}", value)
    relay = keys["relay"].read_table(("log-dir", "max-file-size")) if "relay" in keys else {}
    for name, entry_of_relay in relay.items():
        outcome.take(
            entry_of_relay,
            f"relay.{name}",
            entry_of_relay.read_text() if name == "log-dir" else entry_of_relay.read_number(),
        )
    if entry := keys.get("case-sensitive"):
        outcome.say(entry, "differs" if entry.read_boolean() else "taken", "names are compared case-insensitively")
    _take_downstream(outcome, keys)


def _read_list(entry: DocumentEntry) -> Any:
    """Names as comma-separated text or as a list; tables; timestamps as text."""
    if not isinstance(entry.value, tuple):
        return entry.read_text()
    items = [item.strip_positions() for item in entry.read_items()]
    return [str(item) if isinstance(item, int) else item for item in items]


def _read_event_rules(keys: Mapping[str, DocumentEntry]) -> list[dict[str, Any]]:
    """Event filters, one for each source in `table-migrate-rule`."""
    sets = keys["binlog-filter-rule"].read_mapping() if "binlog-filter-rule" in keys else {}
    by_source: dict[tuple[str, str], dict[str, Any]] = {}
    for rule in keys["table-migrate-rule"].read_items() if "table-migrate-rule" in keys else ():
        parts = rule.read_table(("source", "target", "binlog-filter-rule"))
        if "target" in parts:
            raise parts["target"].build_error(
                "`target` in `table-migrate-rule` is only supported for Oracle", "use [[routes]]"
            )
        if "source" not in parts:
            raise rule.build_error(f"`{rule.key}` has no `source`")
        source = {name: one.read_text() for name, one in parts["source"].read_table(("schema", "table")).items()}
        patterns = source.get("schema", "*"), source.get("table", "*")
        event_rule = by_source.setdefault(
            patterns,
            {
                "schema-pattern": patterns[0],
                "table-pattern": patterns[1],
                "events": [],
                "sql-pattern": [],
                "action": "Ignore",
            },
        )
        for named in parts["binlog-filter-rule"].read_items() if "binlog-filter-rule" in parts else ():
            if named.read_text() not in sets:
                raise named.build_error(
                    f"`binlog-filter-rule` has no {named.read_text()!r}", f"known: {', '.join(sorted(sets))}"
                )
            words = sets[named.read_text()].read_table(("ignore-event", "ignore-sql"))
            event_rule["events"] += words["ignore-event"].read_texts() if "ignore-event" in words else []
            event_rule["sql-pattern"] += words["ignore-sql"].read_texts() if "ignore-sql" in words else []
    return list(by_source.values())


def _take_downstream(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry]) -> None:
    kind = keys["db-type"].read_text() if "db-type" in keys else "mysql"
    to = keys["to"].read_table(_TO_KEYS) if "to" in keys else {}
    say_notes(outcome, to, _TO)
    if kind not in ("file", "pb"):
        _say_unread(outcome, to, _FILE_KEYS)
    if kind in ("mysql", "tidb"):
        outcome.replication["target"] = {"db-type": kind}
        if "db-type" in keys:
            outcome.say(keys["db-type"], "taken", f'target.db-type = "{kind}"; use "mariadb" if it is one')
        _take_target(outcome, keys, to)
    elif kind == "kafka":
        _take_topic(outcome, keys, to)
    elif kind in ("file", "pb"):
        _take_files(outcome, keys, to)
    else:
        raise keys["db-type"].build_error(f"db-type {kind!r} has no counterpart", "use mysql, tidb, kafka or file")


def _take_target(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry], to: Mapping[str, DocumentEntry]) -> None:
    for name in ("txn-batch", "worker-count"):
        if name in keys:
            outcome.take(keys[name], f"target.{name}", keys[name].read_number())
    if entry := keys.get("safe-mode"):
        outcome.take(entry, "target.safe-mode", entry.read_boolean())
    for name in ("enable-dispatch", "disable-dispatch"):
        if entry := keys.get(name):
            _take_dispatch(outcome, entry, one_by_one=entry.read_boolean() == (name == "disable-dispatch"))
    for name in ("host", "port", "user", "sync-mode"):
        if name in to:
            value = to[name].read_text() if name in ("host", "user") else to[name].read_number()
            outcome.take(to[name], f"target.{name}", value)
    for name in ("password", "encrypted_password"):
        if name in to:
            outcome.take_secret(to[name], outcome.replication["target"], "BINLAKE_TARGET_PASSWORD")
    _take_security(outcome, to, "target")
    _take_merge(outcome, to)
    _take_checkpoint(outcome, to)


def _take_dispatch(outcome: ImportOutcome, entry: DocumentEntry, *, one_by_one: bool) -> None:
    if one_by_one:
        outcome.take(entry, "target.mode", "atomic")
    else:
        outcome.say(entry, "taken", "worker-count connections write, if the mode allows it")


def _take_merge(outcome: ImportOutcome, to: Mapping[str, DocumentEntry]) -> None:
    if (entry := to.get("merge")) and entry.read_boolean():
        outcome.take(entry, "target.mode", "parallel")
    elif entry is not None:
        outcome.say(
            entry, "differs", 'changes of a key are merged anyway; target.mode = "ordered" applies each of them'
        )


def _take_checkpoint(outcome: ImportOutcome, to: Mapping[str, DocumentEntry]) -> None:
    for name, entry in (to["checkpoint"].read_table(_CHECKPOINT_KEYS) if "checkpoint" in to else {}).items():
        if name == "schema":
            outcome.take(entry, "target.checkpoint-schema", entry.read_text())
        else:
            outcome.say(entry, "differs", "the checkpoint is always in the target, in the table `checkpoint`")


def _take_topic(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry], to: Mapping[str, DocumentEntry]) -> None:
    """Write to one topic whole transactions in the drainer's message format."""
    if "topic-name" not in to or not to["topic-name"].read_text():
        raise (keys.get("to") or keys["db-type"]).build_error(
            "`syncer.to.topic-name` is missing", "set it: the drainer's default is CLUSTER-ID_obinlog"
        )
    brokers = to["kafka-addrs"].read_text() if "kafka-addrs" in to else "127.0.0.1:9092"
    uri = f"kafka://{brokers}/{to['topic-name'].read_text()}?protocol=slave-binlog"
    for name, word in (("kafka-max-message-size", "max-message-bytes"), ("kafka-client-id", "kafka-client-id")):
        if name in to:
            uri += f"&{word}={to[name].read_text()}"
            outcome.say(to[name], "taken", f"{word} of the feed's sink-uri")
    outcome.replication["feed"] = [{"name": "drainer", "sink-uri": uri}]
    outcome.say(keys["db-type"], "taken", "[[feed]] with protocol slave-binlog")
    for name in ("kafka-addrs", "topic-name"):
        if name in to:
            outcome.say(to[name], "taken", "the feed's sink-uri")
    _say_feed(outcome, keys, to)


def _take_files(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry], to: Mapping[str, DocumentEntry]) -> None:
    """Write binlog files in a separate folder; the drainer's files are not continued."""
    if "dir" not in to or not to["dir"].read_text().startswith("/"):
        raise (to.get("dir") or keys.get("to") or keys["db-type"]).build_error(
            "`syncer.to.dir` must be an absolute path",
            "the drainer's default, data.drainer, is relative to where it was started",
        )
    uri = f"file://{quote(to['dir'].read_text().rstrip('/'))}/binlake?protocol=pb"
    for name in ("retention-time", "compression"):
        value = str(to[name].read_number() if name == "retention-time" else to[name].read_text()) if name in to else ""
        if value not in ("", "0"):
            uri += f"&{name}={value}"
            taken = f"{name} of the feed's sink-uri"
            if name == "compression":
                outcome.say(to[name], "differs", f"{taken}; {COMPRESSED}")
            else:
                outcome.say(to[name], "taken", taken)
    outcome.replication["feed"] = [{"name": "drainer", "sink-uri": uri}]
    outcome.say(keys["db-type"], "taken", "[[feed]] with protocol pb")
    outcome.say(
        to["dir"],
        "differs",
        "files are written to its folder `binlake`, numbered from the start; the drainer's files stay",
    )
    _say_feed(outcome, keys, to)


def _say_feed(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry], to: Mapping[str, DocumentEntry]) -> None:
    for name in ("txn-batch", "worker-count", "safe-mode", "enable-dispatch", "disable-dispatch"):
        if name in keys:
            outcome.say(keys[name], "none", "a feed sends whole transactions")
    _say_unread(outcome, to, _TARGET_KEYS)


def _say_unread(outcome: ImportOutcome, to: Mapping[str, DocumentEntry], names: Iterable[str]) -> None:
    for name in names:
        if name in to:
            outcome.say(to[name], "none", "not read with this db-type")
