"""Finds the source table that last changed a key, for tables that share a target (S4-03)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from binlake.base.lakecolumns import Mutation
from binlake.ddl.shardlocks import Hold
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import match_keys, match_table, read_rows
from binlake.lake.tables import MUTATION

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
