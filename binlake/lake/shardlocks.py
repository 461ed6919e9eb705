"""What tables that share a target hold, as merge sealed it window by window (`binlake.window.shardlocks`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from binlake.errors import ConfigError
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.rows.schema import SchemaState, TableDef
from binlake.rules import Rules
from binlake.window.derived import MergeManifest
from binlake.window.shardlocks import Locks, Name, Resolution
from binlake.window.targets import Naming, TargetTables

STAGE, RESOLVED = "lock", "resolved"
"""Of an event of the table `window`: an operator goes on without tables that others wait for."""


def read_locks(windows: WindowLog, rules: Rules, lo: int, hi: int) -> Locks:
    """All that was held in the merged windows that overlap (lo, hi]; nothing in another mode than pessimistic.

    Raises DamagedManifest.
    """
    return _sealed_locks(windows, lo, hi) if rules.shard_mode == "pessimistic" else Locks()


def _sealed_locks(windows: WindowLog, lo: int, hi: int) -> Locks:
    events = windows.events(stage="merge", state="done", within=(lo, hi), sealed=True)
    last = {(event["lo"], event["hi"]): event["manifest"] for event in events}
    return Locks.join(MergeManifest.from_json(text).locks for _, text in sorted(last.items()) if text)


def read_locks_at(windows: WindowLog, rules: Rules, ts: int) -> Locks:
    """What is held behind `ts`, the end of a merged window or the start of the lake. Raises DamagedManifest."""
    return read_locks(windows, rules, ts - 1, ts).still_open


def record_resolution(windows: WindowLog, place: int, resolution: Resolution, run_id: str = "") -> None:
    """Record what merge does in front of the window behind `place`, the end of what is merged."""
    detail = resolution.to_dict()
    windows.record(WindowEvent(STAGE, place, place + 1, RESOLVED, run_id=run_id, detail=detail))


def read_resolutions(windows: WindowLog, place: int) -> list[Resolution]:
    """What was commanded at `place`, in order."""
    events = windows.events(stage=STAGE, state=RESOLVED, within=(place, place + 1))
    return [Resolution.from_dict(json.loads(event["detail"])) for event in events if event["lo"] == place]


def require_nothing_waits(windows: WindowLog, rules: Rules, ts: int) -> None:
    """In another mode than pessimistic nothing is held behind `ts`: it would never be released.

    Raises ConfigError, DamagedManifest.
    """
    if not rules.routes or rules.shard_mode == "pessimistic":
        return
    held = _sealed_locks(windows, ts - 1, ts).still_open.waiting(ts)
    if held:
        raise ConfigError(
            "rows wait since shard-mode was pessimistic, and in another mode nothing would release them",
            where={"table": held[0]["table"], "rows_of": held[0]["held"], "since": held[0]["since"]},
            hint='set shard-mode = "pessimistic" again until `binlake ddl lock` shows no table, or `binlake ddl lock'
            " resolve`; then change it",
        )


def read_shard_definitions(windows: WindowLog, rules: Rules, ts: int) -> Mapping[Name, TableDef]:
    """The definitions with which tables of the source count at `ts`, where their own ones wait for others."""
    return read_locks(windows, rules, ts - 1, ts).definitions_at(ts)


def target_tables_at(paths: LakePaths, naming: Naming, ts: int, state: SchemaState | None = None) -> TargetTables:
    """The tables as the target has them at `ts`; `state`: the schema there, where it is known."""
    found = SchemaHistory(paths).state_at(ts) if state is None else state
    return TargetTables(found, naming, read_shard_definitions(WindowLog(paths), naming.rules, ts))
