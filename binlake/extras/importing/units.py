"""Converts the settings of DM's processing units, syncer and validator, to settings of the SQL sink."""

from __future__ import annotations

import re
from collections.abc import Mapping

from binlake.extras.importing import notes
from binlake.extras.importing.document import DocumentEntry
from binlake.extras.importing.report import ImportOutcome, say_notes, set_value

UNIT_KEYS: Mapping[str, tuple[str, ...]] = {
    "mydumper": (*notes.MYDUMPERS, "threads", "rows"),
    "loader": tuple(notes.LOADERS),
    "syncer": (*notes.SYNCERS, "worker-count", "batch", "compact", "multiple-rows", "safe-mode", "safe-mode-duration"),
    "validator": (*notes.VALIDATORS, "mode", "max-pending-row-count"),
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
    say_notes(outcome, keys, notes.SYNCERS)


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
    say_notes(outcome, keys, notes.VALIDATORS)


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
