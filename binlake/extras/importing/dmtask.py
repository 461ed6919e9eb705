"""Converts DM's task file and source files to a replication's TOML and a feeder.toml (MISSION S4-52).

Rule: the report has a line about each key; a key without a counterpart is an error if it decides which rows arrive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from binlake.errors import ConfigError
from binlake.extras.importing import units
from binlake.extras.importing.document import DocumentEntry, ImportOutcome, say_notes, set_value
from binlake.extras.importing.rules import TEMPLATE, Instance, Scope, find_table_lists, take_rules
from binlake.extras.importing.units import UNIT_KEYS, find_unit, take_syncer, take_validated_sources, take_validator

_SETS = ("routes", "filters", "expression-filter", "block-allow-list", "black-white-list", "column-mappings")
TASK_KEYS = (
    *units.TASK, *_SETS, *(f"{unit}s" for unit in UNIT_KEYS), "name", "task-mode", "shard-mode", "meta-schema",
    "case-sensitive", "target-database", "mysql-instances", "online-ddl",
)  # fmt: skip
INSTANCE_KEYS = (
    "source-id", "meta", "filter-rules", "column-mapping-rules", "route-rules", "expression-filters",
    "black-white-list", "block-allow-list", "mydumper-config-name", "mydumper", "mydumper-thread",
    "loader-config-name", "loader", "loader-thread", "syncer-config-name", "syncer", "syncer-thread",
    "validator-config-name",
)  # fmt: skip
SOURCE_KEYS = (*units.SOURCE, "source-id", "from", "case-sensitive", "filters")
_SERVER_KEYS = ("host", "port", "user", "password", "max-allowed-packet", "session", "security")
_TLS_KEYS = ("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn", "ssl-ca-bytes", "ssl-cert-bytes", "ssl-key-bytes",
             "ssl-ca-base64", "ssl-cert-base64", "ssl-key-base64")  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Choices:
    """Settings that DM's files do not contain."""

    lake: str
    pd_urls: str
    status_addr: str
    tracker: str
    db_type: str
    keep_schema_names: bool = False


def import_task(task: DocumentEntry, sources: Sequence[DocumentEntry], choices: Choices) -> ImportOutcome:
    """The replication and the feeder of a task. Raises ConfigError."""
    keys = task.read_table(TASK_KEYS)
    outcome = ImportOutcome()
    _require(task, keys, ("name", "target-database", "mysql-instances"))
    name = _take_name(outcome, keys["name"])
    outcome.replication["source"] = {
        "pd-urls": choices.pd_urls, "status-url": f"http://{choices.status_addr}",
    }  # fmt: skip
    outcome.replication["lake"] = {"path": choices.lake}
    outcome.replication["target"] = {"db-type": choices.db_type}
    _take_switches(outcome, keys)
    _take_target(outcome, keys["target-database"])
    instances = _read_instances(keys["mysql-instances"], sources, choices)
    take_rules(outcome, keys, instances)
    _take_units(outcome, keys, instances)
    _take_feeder(outcome, name, choices)
    for instance, source in zip(instances, _sort_sources(instances, sources), strict=True):
        _take_source(outcome, keys, instance, source)
    take_validated_sources(outcome)
    return outcome


def _require(entry: DocumentEntry, keys: Mapping[str, DocumentEntry], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in keys]
    if missing:
        raise entry.build_error(f"`{missing[0]}` is missing", "add it: DM requires it too")


def _take_name(outcome: ImportOutcome, entry: DocumentEntry) -> str:
    text = entry.read_text()
    name = re.sub(r"[^a-z0-9_-]", "-", text.lower())
    if not _NAME.fullmatch(name):
        raise entry.build_error(f"the name {text!r} does not begin with a letter, or is too long", "rename the task")
    outcome.replication["name"] = name
    outcome.say(
        entry,
        "taken" if name == text else "differs",
        f'name = "{name}", which is also the name of the DAG and of the lake\'s folder',
    )
    return name


def _take_switches(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry]) -> None:
    say_notes(outcome, keys, units.TASK)
    if entry := keys.get("column-mappings"):
        raise entry.build_error(
            "column mappings are not supported (nor by DM since 2.0)",
            "use extract-table, extract-schema or extract-source",
        )
    if entry := keys.get("meta-schema"):
        outcome.take(entry, "target.checkpoint-schema", entry.read_text())
    if entry := keys.get("case-sensitive"):
        same = not entry.read_boolean()
        outcome.say(entry, "taken" if same else "differs", "names are compared case-insensitively")
    if entry := keys.get("online-ddl"):
        same = entry.read_boolean()
        text = "the tables of gh-ost and pt-osc are recognised" + ("" if same else " in any case")
        outcome.say(entry, "taken" if same else "differs", text)
    if entry := keys.get("shard-mode"):
        _say_shard_mode(outcome, entry)


def _say_shard_mode(outcome: ImportOutcome, entry: DocumentEntry) -> None:
    mode = entry.read_text()
    if mode not in ("", "pessimistic", "optimistic"):
        raise entry.build_error(f"unknown shard-mode {mode!r}", "use pessimistic, optimistic or empty")
    if mode:
        outcome.take(entry, "shard-mode", mode)
        return
    text = (
        "no shard waits: the first shard widens the target's table, the last one narrows it, else the pipeline stops;"
        " `binlake ddl lock` shows what each table lacks"
    )
    outcome.say(entry, "differs", text)


def _take_target(outcome: ImportOutcome, entry: DocumentEntry) -> None:
    keys = entry.read_table(_SERVER_KEYS)
    for name in ("host", "port", "user"):
        if name in keys:
            outcome.take(
                keys[name], f"target.{name}", keys[name].read_number() if name == "port" else keys[name].read_text()
            )
    if "password" in keys:
        outcome.take_secret(keys["password"], outcome.replication["target"], "BINLAKE_TARGET_PASSWORD")
    say_notes(outcome, keys, units.TARGET)
    for name, one in _list_tls_files(outcome, keys):
        outcome.take(one, f"target.security.{name}", one.read_text())


def _read_instances(entry: DocumentEntry, sources: Sequence[DocumentEntry], choices: Choices) -> list[Instance]:
    instances: list[Instance] = []
    distinct = len(entry.read_items()) > 1 and not choices.keep_schema_names
    for one in entry.read_items():
        keys = one.read_table(INSTANCE_KEYS)
        _require(one, keys, ("source-id",))
        if rules := keys.get("column-mapping-rules"):
            raise rules.build_error("column mappings are not supported (nor by DM since 2.0)", "remove the key")
        source = keys["source-id"].read_text()
        if not _SOURCE.fullmatch(source):
            raise keys["source-id"].build_error(
                f"the source-id {source!r} is not valid as the name of a feeder's source",
                "use only letters, digits, - _ and .",
            )
        if any(known.source == source for known in instances):
            raise keys["source-id"].build_error(f"two instances have the source-id {source!r}")
        file = next((file for file in sources if _read_source_id(file) == source), None)
        if file is None:
            given = ", ".join(_read_source_id(file) for file in sources) or "none"
            raise keys["source-id"].build_error(
                f"no source file with the source-id {source!r} is given", f"given: {given}"
            )
        filters = file.read_table(SOURCE_KEYS).get("filters")
        instances.append(
            Instance(source, Scope.of(source, distinct=distinct), keys, filters.read_items() if filters else ())
        )
    if not instances:
        raise entry.build_error("the task has no instance")
    if distinct:
        _require_distinct_names(entry, instances)
    for file in sources:
        if _read_source_id(file) not in {one.source for one in instances}:
            raise file.build_error(f"the task has no instance of the source {_read_source_id(file)!r}", "omit the file")
    return instances


def _require_distinct_names(entry: DocumentEntry, instances: Sequence[Instance]) -> None:
    """Require that a database's name identifies its source: no source's name may begin with another's."""
    names = [instance.scope.prefix.lower() for instance in instances]
    for first, second in permutations(names, 2):
        if second.startswith(first):
            raise entry.build_error(
                f"with the sources {first[:-1]} and {second[:-1]}, the names of their databases would begin alike",
                "rename one of them, here and in its file, or pass --keep-schema-names",
            )


def _read_source_id(file: DocumentEntry) -> str:
    keys = file.read_table(SOURCE_KEYS)
    _require(file, keys, ("source-id", "from"))
    return keys["source-id"].read_text()


def _sort_sources(instances: Sequence[Instance], sources: Sequence[DocumentEntry]) -> list[DocumentEntry]:
    by_id = {_read_source_id(file): file for file in sources}
    return [by_id[instance.source] for instance in instances]


def _take_units(outcome: ImportOutcome, task: Mapping[str, DocumentEntry], instances: Sequence[Instance]) -> None:
    """Take the syncers and validators; the settings of snapshots belong to each source."""
    _check_sets(outcome, task, instances)
    first, *others = (find_unit(task, one.keys, "syncer") for one in instances)
    take_syncer(outcome, first, thread=instances[0].keys.get("syncer-thread"))
    for other in others:
        if other is not None and (first is None or other.strip_positions() != first.strip_positions()):
            outcome.say(
                other, "differs", f"all sources share one SQL sink, which has the settings for {instances[0].source}"
            )
    validators = [unit for one in instances if (unit := find_unit(task, one.keys, "validator")) is not None]
    for entry in {entry.key: entry for entry in validators}.values():
        take_validator(outcome, entry)


def _check_sets(outcome: ImportOutcome, task: Mapping[str, DocumentEntry], instances: Sequence[Instance]) -> None:
    """Check settings that no instance names too, so that no key of the file is ignored."""
    for unit, known in UNIT_KEYS.items():
        used = {settings.key for one in instances if (settings := find_unit(task, one.keys, unit)) is not None}
        for entry in (task[f"{unit}s"].read_mapping() if f"{unit}s" in task else {}).values():
            entry.read_table(known)
            if entry.key not in used:
                outcome.say(entry, "none", "omitted, since no instance names it")


def _take_feeder(outcome: ImportOutcome, name: str, choices: Choices) -> None:
    host, _, port = choices.tracker.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("--tracker must be HOST:PORT", where={"tracker": choices.tracker})
    outcome.feeder |= {
        "name": name, "pd-urls": choices.pd_urls, "data-dir": f"data.{name}", "status-addr": choices.status_addr,
        "target-families": [choices.db_type],
        "tracker": {"host": host, "port": int(port), "user": "binlake", "password": "env:BINLAKE_TRACKER_PASSWORD"},
        "source": [],
    }  # fmt: skip
    outcome.secrets.append("BINLAKE_TRACKER_PASSWORD")


def _take_source(
    outcome: ImportOutcome, task: Mapping[str, DocumentEntry], instance: Instance, file: DocumentEntry
) -> None:
    keys = file.read_table(SOURCE_KEYS)
    values: dict[str, Any] = {"name": instance.source}
    outcome.say(keys["source-id"], "taken", f'source.name = "{instance.source}" of the feeder')
    _take_server(outcome, keys["from"], instance, values)
    if instance.scope.prefix:
        values["rename-schema"] = TEMPLATE
        outcome.say(keys["source-id"], "differs", "its databases are called SOURCE_SCHEMA in rules,"
        " audits and the lake, since sources may have databases of the same name; at the target their"
        " names follow the routes")  # fmt: skip
    if entry := keys.get("case-sensitive"):
        fate = "differs" if entry.read_boolean() else "taken"
        outcome.say(entry, fate, "names are compared case-insensitively")  # type: ignore[arg-type]
    if entry := keys.get("filters"):
        outcome.say(entry, "taken", "[[filters]]")
    say_notes(outcome, keys, units.SOURCE)
    _take_start(outcome, task.get("task-mode"), instance, values)
    _take_snapshot(outcome, task, instance, values)
    outcome.feeder["source"].append(values)


def _take_server(outcome: ImportOutcome, entry: DocumentEntry, instance: Instance, values: dict[str, Any]) -> None:
    keys = entry.read_table(_SERVER_KEYS)
    for name in ("host", "port", "user"):
        if name in keys:
            values[name] = keys[name].read_number() if name == "port" else keys[name].read_text()
            outcome.say(keys[name], "taken", f"source.{name} of the feeder")
    if "password" in keys:
        variable = f"BINLAKE_SOURCE_{re.sub(r'[^A-Z0-9]', '_', instance.source.upper())}_PASSWORD"
        outcome.take_secret(keys["password"], values, variable)
    say_notes(outcome, keys, units.FROM)
    for name, one in _list_tls_files(outcome, keys):
        set_value(values, f"security.{name}", one.read_text())
        outcome.say(one, "taken", f"source.security.{name} of the feeder")


def _list_tls_files(outcome: ImportOutcome, keys: Mapping[str, DocumentEntry]) -> Iterator[tuple[str, DocumentEntry]]:
    """The keys of a server's `security` that name files, by name; the others get a line."""
    for name, one in (keys["security"].read_table(_TLS_KEYS) if "security" in keys else {}).items():
        if name in ("ssl-ca", "ssl-cert", "ssl-key"):
            yield name, one
        else:
            outcome.say(one, "none", "certificates are read only from files: ssl-ca, ssl-cert, ssl-key")


_MODES = {
    "all": 'source.start.mode = "snapshot" of the feeder',
    "incremental": "no snapshot is read",
    "full": "the feeder reads a snapshot and then the log; stop it after `binlake bootstrap`",
}


def _take_start(outcome: ImportOutcome, mode: DocumentEntry | None, instance: Instance, values: dict[str, Any]) -> None:
    word = mode.read_text() if mode is not None else "all"
    if word not in _MODES and mode is not None:
        raise mode.build_error(
            f"task-mode {word!r} has no counterpart", "use all, full or incremental; for a base that is loaded"
            " already, incremental with `meta`, then `binlake checkpoint set --base`",
        )  # fmt: skip
    meta = instance.keys.get("meta")
    if word == "incremental":
        values["start"] = _take_log_position(outcome, meta)
    else:
        values["start"] = {"mode": "snapshot"}
        if meta is not None:
            outcome.say(meta, "taken", "not used with a full load, as in DM")
    if mode is None:
        return
    known = word == "all" or values["start"]["mode"] in ("gtid", "position")
    lack = f": {instance.source} has no `meta`, so its log is read from the current end"
    text = _MODES[word] + (lack if values["start"]["mode"] == "now" else "")
    outcome.say(mode, "taken" if known else "differs", text)


def _take_log_position(outcome: ImportOutcome, meta: DocumentEntry | None) -> dict[str, Any]:
    position = meta.read_table(("binlog-name", "binlog-pos", "binlog-gtid")) if meta is not None else {}
    if "binlog-gtid" in position and position["binlog-gtid"].read_text():
        outcome.say(
            position["binlog-gtid"], "taken", "source.start.gtid of the feeder; it has priority over file and offset"
        )
        return {"mode": "gtid", "gtid": position["binlog-gtid"].read_text()}
    if "binlog-name" in position:
        offset = max(position["binlog-pos"].read_number(), 4) if "binlog-pos" in position else 4
        outcome.say(position["binlog-name"], "taken", f"source.start.file of the feeder, offset = {offset}")
        return {"mode": "position", "file": position["binlog-name"].read_text(), "offset": offset}
    return {"mode": "now"}


def _take_snapshot(
    outcome: ImportOutcome, task: Mapping[str, DocumentEntry], instance: Instance, values: dict[str, Any]
) -> None:
    snapshot: dict[str, Any] = {}
    dump, load = find_unit(task, instance.keys, "mydumper"), find_unit(task, instance.keys, "loader")
    if dump is not None:
        keys = dump.read_table(UNIT_KEYS["mydumper"])
        say_notes(outcome, keys, units.MYDUMPERS)
        for name, key in (("threads", "threads"), ("rows", "chunk-rows")):
            if name in keys:
                snapshot[key] = keys[name].read_number()
                outcome.say(keys[name], "taken", f"source.snapshot.{key} = {snapshot[key]} of the feeder")
    if thread := instance.keys.get("mydumper-thread"):
        snapshot["threads"] = thread.read_number()
        outcome.say(thread, "taken", f"source.snapshot.threads = {snapshot['threads']} of the feeder")
    if load is not None:
        say_notes(outcome, load.read_table(UNIT_KEYS["loader"]), units.LOADERS)
    if thread := instance.keys.get("loader-thread"):
        outcome.say(thread, *units.LOADERS["pool-size"])
    lists = find_table_lists(task, instance)
    if lists is not None and lists.read_mapping() and values["start"]["mode"] == "snapshot":
        snapshot["block-allow-list"] = lists.strip_positions()
    if snapshot:
        values["snapshot"] = snapshot
