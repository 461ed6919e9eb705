"""What tables that share a target hold, as merge sealed it window by window (`binlake.window.shardlocks`)."""

from __future__ import annotations

from collections.abc import Mapping

from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowLog
from binlake.rows.schema import SchemaState, TableDef
from binlake.rules import Rules
from binlake.window.derived import MergeManifest
from binlake.window.shardlocks import Locks, Name
from binlake.window.targets import Naming, TargetTables


def read_locks(windows: WindowLog, rules: Rules, lo: int, hi: int) -> Locks:
    """All that was held in the merged windows that overlap (lo, hi]; nothing in another mode than pessimistic.

    Raises DamagedManifest.
    """
    if rules.shard_mode != "pessimistic":
        return Locks()
    events = windows.events(stage="merge", state="done", within=(lo, hi), sealed=True)
    last = {(event["lo"], event["hi"]): event["manifest"] for event in events}
    return Locks.joined(MergeManifest.from_json(text).locks for _, text in sorted(last.items()) if text)


def read_locks_at(windows: WindowLog, rules: Rules, ts: int) -> Locks:
    """What is held behind `ts`, the end of a merged window or the start of the lake. Raises DamagedManifest."""
    return read_locks(windows, rules, ts - 1, ts).still_open


def read_shown(windows: WindowLog, rules: Rules, ts: int) -> Mapping[Name, TableDef]:
    """The definitions with which tables of the source count at `ts`, where their own ones wait for others."""
    return read_locks(windows, rules, ts - 1, ts).shown(ts)


def target_tables_at(paths: LakePaths, naming: Naming, ts: int, state: SchemaState | None = None) -> TargetTables:
    """The tables as the target has them at `ts`; `state`: the schema there, where it is known."""
    found = SchemaHistory(paths).state_at(ts) if state is None else state
    return TargetTables(found, naming, read_shown(WindowLog(paths), naming.rules, ts))
