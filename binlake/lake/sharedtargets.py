"""Tables that share a target, as the lake knows them: the holds of their DDL, and who last changed a key (S4-03).

Merge sealed the holds per window (`binlake.ddl.shardlocks`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from binlake.common.lakecolumns import Mutation
from binlake.ddl.shardlocks import Hold, Locks, Name, Resolution
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import ConfigError
from binlake.lake.mutations import match_keys, match_table, read_rows
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import MUTATION
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.rows.schema import SchemaState, TableDef
from binlake.rules import Rules
from binlake.window.derived import MergeManifest

STAGE, RESOLVED = "lock", "resolved"
"""Stage and state of the event that an operator continues without tables that others wait for."""


def read_locks(windows: WindowLog, rules: Rules, lo: int, hi: int) -> Locks:
    """All holds in the merged windows that overlap (lo, hi]; empty unless the mode is pessimistic.

    Raises DamagedManifest.
    """
    return _read_sealed_locks(windows, lo, hi) if rules.shard_mode == "pessimistic" else Locks()


def _read_sealed_locks(windows: WindowLog, lo: int, hi: int) -> Locks:
    events = windows.read_events(stage="merge", state="done", within=(lo, hi), sealed=True)
    last = {(event["lo"], event["hi"]): event["manifest"] for event in events}
    return Locks.join(MergeManifest.from_json(text).locks for _, text in sorted(last.items()) if text)


def read_locks_at(windows: WindowLog, rules: Rules, ts: int) -> Locks:
    """The holds that are open after `ts`, the end of a merged window or the lake's start. Raises DamagedManifest."""
    return _read_sealed_locks(windows, ts - 1, ts).still_open if rules.shard_mode == "pessimistic" else Locks()


def record_resolution(windows: WindowLog, ts: int, resolution: Resolution, run_id: str = "") -> None:
    """Record a command that merge executes before the window above `ts`, the end of the merged range."""
    detail = resolution.to_dict()
    windows.record(WindowEvent(STAGE, ts, ts + 1, RESOLVED, run_id=run_id, detail=detail))


def read_resolutions(windows: WindowLog, ts: int) -> list[Resolution]:
    """The recorded commands at `ts`, in order."""
    events = windows.read_events(stage=STAGE, state=RESOLVED, within=(ts, ts + 1))
    return [Resolution.from_dict(json.loads(event["detail"])) for event in events if event["lo"] == ts]


def require_nothing_waits(windows: WindowLog, rules: Rules, ts: int) -> None:
    """Require that no rows are held after `ts` unless the mode is pessimistic: they would never be released.

    Raises ConfigError, DamagedManifest.
    """
    if not rules.routes or rules.shard_mode == "pessimistic":
        return
    waiting = _read_sealed_locks(windows, ts - 1, ts).still_open.list_waiting(ts)
    if waiting:
        raise ConfigError(
            "rows are held since shard-mode was pessimistic, and in another mode they would never be released",
            where={"table": waiting[0]["table"], "rows_of": waiting[0]["held"], "since": waiting[0]["since"]},
            hint='set shard-mode = "pessimistic" again until `binlake ddl lock` shows no table, or run `binlake ddl'
            " lock resolve`; then change it",
        )


def read_shard_definitions(windows: WindowLog, rules: Rules, ts: int) -> Mapping[Name, TableDef]:
    """The target's definitions at `ts` of the source tables whose own definitions wait for others."""
    if rules.shard_mode != "pessimistic":
        return {}
    return _read_sealed_locks(windows, ts - 1, ts).list_definitions_at(ts)


def read_target_tables_at(paths: LakePaths, naming: Naming, ts: int, state: SchemaState | None = None) -> TargetTables:
    """The target's tables at `ts`. `state`: the schema at `ts`, if known."""
    known = SchemaHistory(paths).read_state_at(ts) if state is None else state
    return TargetTables(known, naming, read_shard_definitions(WindowLog(paths), naming.rules, ts))


_KEYS_A_READ = 100
_COLUMNS = (
    Mutation.COMMIT_TS,
    Mutation.START_TS,
    Mutation.SEQ,
    Mutation.OP,
    Mutation.KEY,
    Mutation.NEW_KEY,
    Mutation.SOURCE_DB,
    Mutation.SOURCE_TABLE,
    Mutation.TABLE_ID,
)


@dataclass(frozen=True)
class KeyOwner:
    """The last change of a key: commit_ts, source table (db.table and `table_id`), and whether it left a row."""

    commit_ts: int
    source: str
    table_id: int
    left_row: bool


def find_key_owners(
    paths: LakePaths, db: str, table: str, keys: Sequence[str], until: int, holds: Sequence[Hold] = ()
) -> dict[str, KeyOwner]:
    """The known owners at commit_ts `until` of `keys` (texts of `mutation.key`) of the target's table.

    Reads the whole history of these keys, so use it only for a few. `holds`: held rows own no key yet.
    """
    waiting = [hold for hold in holds if hold.waits or hold.released > until]
    last_changes: dict[str, tuple[tuple[int, int, int], KeyOwner]] = {}
    for start in range(0, len(keys), _KEYS_A_READ):
        batch = set(keys[start : start + _KEYS_A_READ])
        rows = read_rows(paths, MUTATION, 0, until, _COLUMNS, match_table(db, table) & match_keys(batch))
        for place, key, owner in _parse_changes(rows.to_pylist()):
            if any(_is_held(owner, hold, until) for hold in waiting):
                continue
            if key in batch and (key not in last_changes or last_changes[key][0] < place):
                last_changes[key] = (place, owner)
    return {key: owner for key, (_, owner) in last_changes.items()}


def _is_held(owner: KeyOwner, hold: Hold, until: int) -> bool:
    return owner.source == ".".join(hold.source) and hold.since <= owner.commit_ts < hold.compute_end(until)


def _parse_changes(rows: list[dict[str, object]]) -> Iterator[tuple[tuple[int, int, int], str, KeyOwner]]:
    for row in rows:
        commit_ts, start_ts, seq, table_id = (int(str(row[name])) for name in (*_COLUMNS[:3], Mutation.TABLE_ID))
        source = f"{row[Mutation.SOURCE_DB]}.{row[Mutation.SOURCE_TABLE]}"
        moved = row[Mutation.NEW_KEY] is not None
        place = (commit_ts, start_ts, seq)
        yield (
            place,
            str(row[Mutation.KEY]),
            KeyOwner(commit_ts, source, table_id, row[Mutation.OP] != "delete" and not moved),
        )
        if moved:
            yield place, str(row[Mutation.NEW_KEY]), KeyOwner(commit_ts, source, table_id, left_row=True)
