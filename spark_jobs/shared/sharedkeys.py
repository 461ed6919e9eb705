"""Checks that a key of a shared target table belongs to one source table at a time, in all windows (S4-03, R-15).

Inside a window the changes of a key are checked in order. Across windows the target is the record: a new key must not
exist there yet, so its index is looked up once for each key. Only if the key exists is the lake asked which source
table wrote it. The keys of mirrors are checked in the same way.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import structlog

from binlake.changes.net.origins import History
from binlake.common.redaction import redact_key
from binlake.config.servers import TargetSection
from binlake.ddl.shardlocks import Hold
from binlake.errors import SchemaError
from binlake.lake.sharedtargets import KeyOwner, find_key_owners, read_locks
from binlake.mirror.replica import Replica
from binlake.rows.schema import TableDef
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.shared.nextwindow import find_next_start, read_target_position
from binlake.spark_jobs.shared.sinks import SinkWindow, read_target_tables
from binlake.target import TargetPosition, TargetSession
from binlake.target.apply.batches import find_present_keys
from binlake.target.definitions.definitions import moves_rows
from binlake.target.definitions.forms import Name

log = structlog.get_logger(__name__)

_DISJOINT = "make the keys disjoint, or distinguish the tables by extract-table or extract-source in `routes`"

NewKeys = tuple[Sequence[History], Iterable[pa.RecordBatch]]
"""Histories by number, and ARRIVALS in batches (`netchange.find_key_arrivals`)."""


@dataclass(frozen=True)
class Arrival:
    """A key that a row of `source` newly adds to a target table; `columns` are the key's columns."""

    db: str
    table: str
    columns: tuple[str, ...]
    key: str
    source: str
    table_id: int
    commit_ts: int


def find_shared_tables(ctx: StageContext, window: SinkWindow, touched: set[Name]) -> set[Name]:
    """The tables of `touched` that take rows of several source tables without an extract column to distinguish them."""
    if not ctx.rules.routes:
        return set()
    ends = [window.base, read_target_tables(ctx, window.bounds.hi)] if window.ddls else [window.base]
    shared = set()
    for name in touched:
        sources = {(source.db, source.name) for tables in ends for source in tables.find_sources(*name)}
        if len(sources) > 1 and not all(ctx.rules.routes.extract_columns(*source) for source in sources):
            shared.add(name)
    return shared


def require_own_keys(
    ctx: StageContext, window: SinkWindow, new_keys: NewKeys, position: TargetPosition, *, strict: bool
) -> int:
    """The number of new keys that the target already had from an unknown source table. `new_keys`: of shared tables.

    Raises SchemaError with the key and both tables if one writes a key that belongs to the other; if `strict`, also for
    a key that existed before the lake began. The target is asked only if it is at the window's lo.
    """
    target = ctx.replication.require_sql_target()
    at_lo = position.window is None and find_next_start(ctx, position) == window.bounds.lo
    unknown: list[Arrival] = []
    for arrivals in _iterate_rounds(new_keys):
        if at_lo:
            unknown += _find_unexplained(ctx, window, target, arrivals)
    # After an unclean end, and before the first window, the target may hold later rows: those of the arrivals
    # themselves.
    if not unknown or position.commit_ts is None or window.bounds.lo < position.exit_ts:
        return 0
    # So it may if this very window was opened or applied while its keys were looked up: by another run, or by the last
    # COMMIT of a killed one. A position that is still the same was the position when the keys were looked up.
    now = read_target_position(ctx, window.bounds)
    if (now.commit_ts, now.window) != (position.commit_ts, position.window):
        log.info("target_moved", window=window.bounds.window, commit_ts=now.commit_ts, opened=now.window)
        return 0
    if strict:
        raise _build_unknown_error(unknown[0], window)
    log.warning("keys_of_unknown_tables", keys=len(unknown), table=f"{unknown[0].db}.{unknown[0].table}")
    return len(unknown)


def require_own_mirror_keys(ctx: StageContext, window: SinkWindow, new_keys: NewKeys) -> None:
    """As `require_own_keys`, for the mirrors. A mirror above the window's lo was already checked.

    A key that no change in the lake wrote has no owner. Raises SchemaError.
    """
    holds = _holds(ctx, window)
    for arrivals in _iterate_rounds(new_keys):
        for name, group in _group_by_table(arrivals):
            table, mirror = (
                window.definitions.find_at(*name, window.bounds.lo),
                Replica(ctx.paths.locate_mirror(*name), 0),
            )
            if table is None or mirror.read_position() > window.bounds.lo:
                continue
            old = [arrival for arrival in group if _meets_old_rows(window, table, arrival)]
            there = mirror.find_present_keys({arrival.key for arrival in old})
            taken = [arrival for arrival in old if arrival.key in there]
            owners = find_key_owners(ctx.paths, *name, [arrival.key for arrival in taken], window.bounds.lo, holds)
            for arrival in taken:
                _require_owner(arrival, owners.get(arrival.key))


def _holds(ctx: StageContext, window: SinkWindow) -> Sequence[Hold]:
    return read_locks(ctx.windows, ctx.rules, window.bounds.lo, window.bounds.hi).holds


def _group_by_table(arrivals: Sequence[Arrival]) -> Iterator[tuple[Name, Iterator[Arrival]]]:
    named = sorted(arrivals, key=lambda arrival: (arrival.db, arrival.table))
    yield from itertools.groupby(named, key=lambda arrival: (arrival.db, arrival.table))


def _iterate_rounds(new_keys: NewKeys) -> Iterator[list[Arrival]]:
    """Keys whose first change in the window adds a row. Raises SchemaError if two tables have one at the same time."""
    histories, batches = new_keys
    for batch in batches:
        arrivals = []
        for row in batch.to_pylist():
            db, table, columns = histories[row["history"]]
            arrival = Arrival(db, table, columns, row["key"], row["source"], row["table_id"], row["commit_ts"])
            if row["other_source"] is not None:
                raise _build_clash_error(arrival, row["other_source"], row["other_commit_ts"])
            arrivals.append(arrival)
        if arrivals:
            yield arrivals


def _find_unexplained(
    ctx: StageContext, window: SinkWindow, target: TargetSection, arrivals: Sequence[Arrival]
) -> list[Arrival]:
    """Arrivals whose keys the target already has and whose writer the lake does not know. Raises SchemaError."""
    unknown: list[Arrival] = []
    holds = _holds(ctx, window)
    with closing(TargetSession(target)) as session:
        for name, group in _group_by_table(arrivals):
            table = window.definitions.find_at(*name, window.bounds.lo)
            if table is None:
                continue
            taken = _find_taken(
                session, table, [arrival for arrival in group if _meets_old_rows(window, table, arrival)]
            )
            owners = find_key_owners(ctx.paths, *name, [arrival.key for arrival in taken], window.bounds.lo, holds)
            for arrival in taken:
                _require_owner(arrival, owners.get(arrival.key))
            unknown += [arrival for arrival in taken if arrival.key not in owners]
    return unknown


def _meets_old_rows(window: SinkWindow, table: TableDef, arrival: Arrival) -> bool:
    """True if the rows from before the window still exist, under the same key columns, at the time of the arrival."""
    name = (table.db, table.name)
    cleared_at = (
        cut.since
        for cut in window.cuts
        if name in {(other.db, other.name) for other in cut.before.tables}
        and (moves_rows(cut.action) or name not in {(other.db, other.name) for other in cut.after.tables})
    )
    end = min(cleared_at, default=window.bounds.hi + 1)
    return arrival.commit_ts < end and arrival.columns == table.find_identity().columns


def _find_taken(session: TargetSession, table: TableDef, arrivals: Sequence[Arrival]) -> list[Arrival]:
    keys = [json.loads(arrival.key) for arrival in arrivals]
    return [arrivals[number] for number in find_present_keys(session, table, keys)]


def _require_owner(arrival: Arrival, owner: KeyOwner | None) -> None:
    """Raises SchemaError if another table's row has the key. The key of a removed row belongs to no table."""
    if owner is not None and owner.left_row and owner.source != arrival.source and owner.table_id != arrival.table_id:
        raise _build_clash_error(arrival, owner.source, owner.commit_ts)


def _build_clash_error(arrival: Arrival, other: str, since: int) -> SchemaError:
    return SchemaError(
        "two tables of the source write one key of their common target",
        where={"table": f"{arrival.db}.{arrival.table}", "key": redact_key(arrival.key),
               "sources": f"{other},{arrival.source}", "commit_ts": arrival.commit_ts, "written_before_at": since},
        hint=_DISJOINT,
    )  # fmt: skip


def _build_unknown_error(arrival: Arrival, window: SinkWindow) -> SchemaError:
    return SchemaError(
        "a source table inserts a row whose key the shared target table already has; that row is older than the lake,"
        " so it is unknown which source table wrote it",
        where={"table": f"{arrival.db}.{arrival.table}", "key": redact_key(arrival.key), "source": arrival.source,
               "commit_ts": arrival.commit_ts, "window": window.bounds.window},
        hint="look for the key in the source tables that share this target (show-row-values = true names it). If only"
        ' this one has it, set target.impossible-changes = "last" and run the window again: it writes its row over the'
        " one that is there. Otherwise " + _DISJOINT,
    )  # fmt: skip
