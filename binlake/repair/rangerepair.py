"""Brings every key that a range touched to its state at the target's checkpoint, window by window of the range.

The target is held for one window at a time, so scheduled runs continue in between: each window is repaired to the
checkpoint at that time, never to an older one (MISSION C-05, hazards R-01). Too many keys do no harm; a missing key
would. So a table whose key has changed since is reported as `whole`, to be compared completely (R-18).

A backfill is identified by its name, and records an event in the table `window` per finished window (U-23, U-24). An
interrupted one continues after its last window; a finished one starts again.
"""

from __future__ import annotations

import heapq
import json
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from binlake.audit.audit import Audit
from binlake.common.lakecolumns import Mutation
from binlake.common.terminal import Tell, tell_nobody
from binlake.config import Replication
from binlake.ddl.targets import Naming
from binlake.errors import ConfigError, IncompleteWindow, Transient
from binlake.lake.mutations import match_commit_ts
from binlake.lake.opentable import load_table, open_dataset
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import MUTATION
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.repair.chunks import AnyKey
from binlake.repair.lakeside import Name, VerifiedTable, list_tables_at
from binlake.repair.repairing import Repaired, build_settled_target, group_keys_by_table, repair_keys
from binlake.repair.verify import VerifyOptions, verify
from binlake.rows.codec.casts import derive_cast_form
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rules import Rules
from binlake.target.apply.settled import SettledTarget
from binlake.target.claim.checkpoint import is_aside

STAGE = "backfill"
_FINISHED = "finished"

Bounds = tuple[int, int]
_COLUMNS = (Mutation.DB, Mutation.TABLE, Mutation.TABLE_ID, Mutation.KEY, Mutation.NEW_KEY)
log = structlog.get_logger(__name__)
MOST_DIFFERENCES = 1_000_000
"""Rows repaired at once in tables that are compared completely."""
_ASK_EVERY_S = 0.5


def repair_range(
    replication: Replication,
    progress: BackfillProgress,
    *,
    wait_s: float = 0.0,
    hook: Callable[[str], None] | None = None,
) -> Repaired:
    """Repair the rest of the range. Returns the totals. Raises what `repair_keys` raises, and IncompleteWindow."""
    total = Repaired(0)
    for bounds in progress.list_remaining():
        began = time.monotonic()
        with hold_target(replication, wait_s, hook=hook) as target:
            done = _repair_window(replication, bounds, target)
        detail = {"keys": done.keys, "different": done.different, "checkpoint": str(done.commit_ts), "gone": done.gone}
        detail |= {"unknown": done.unknown, "aside": done.aside}
        progress.record_done(bounds, done.rows, time.monotonic() - began, detail)
        log.info("window_repaired", lo=bounds[0], hi=bounds[1], rows=done.rows, **detail)
        total = _add_up(total, done)
    return total


@contextmanager
def hold_target(
    replication: Replication, wait_s: float, *, hook: Callable[[str], None] | None = None
) -> Iterator[SettledTarget]:
    """Hold the target, waiting up to `wait_s` seconds while another process applies. Raises LeaseHeld, Transient."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            target = build_settled_target(replication, hook=hook).__enter__()
            break
        except Transient:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_ASK_EVERY_S)
    try:
        yield target
    finally:
        target.__exit__()


def _repair_window(replication: Replication, bounds: Bounds, target: SettledTarget) -> Repaired:
    ts = target.read_checkpoint().commit_ts
    paths = LakePaths.of(replication)
    merged = Audit(paths, Rules.of(replication)).read_merged_range()[1]
    if bounds[1] > merged:
        raise IncompleteWindow("a window of the range is not merged yet", where={"to": bounds[1], "merged": merged})
    touched = find_touched_keys(replication, *bounds, ts, list_tables_at(replication, paths, ts))
    left = touched.remove_aside(target.read_aside_tables())
    done = repair_keys(replication, touched.sort_keys(), target)
    if touched.whole:
        done = _add_up(done, _repair_whole_tables(replication, touched, target))
    done.gone += [".".join(name) for name in sorted(touched.gone)]
    done.aside += [".".join(name) for name in sorted(left)]
    return done


def _repair_whole_tables(replication: Replication, touched: TouchedKeys, target: SettledTarget) -> Repaired:
    """Compare every row of tables whose keys in the range no longer identify rows."""
    names = tuple(".".join(name) for name in sorted(touched.whole))
    compared = verify(replication, VerifyOptions(tables=names, max_differences=MOST_DIFFERENCES, fresh=True))
    tables = list_tables_at(replication, LakePaths.of(replication), compared.commit_ts)
    done = repair_keys(replication, group_keys_by_table(compared.differences, tables), target)
    if not compared.listed_all or any(table.unlisted for table in compared.tables):
        raise Transient("more rows differ than one run repairs", where={"tables": names}, hint="run it again")
    unknown = [f"{table.db}.{table.table}" for table in compared.tables if table.inexact]
    looked = {table.name: table.expected for table in compared.read} | done.looked
    return replace(done, keys=compared.rows, unknown=[*done.unknown, *unknown], looked=looked)


def _add_up(total: Repaired, other: Repaired) -> Repaired:
    return Repaired(
        other.commit_ts, total.keys + other.keys, total.different + other.different, total.rows + other.rows,
        [*total.gone, *other.gone], [*total.unknown, *other.unknown],
        {**total.looked, **other.looked}, total.written | other.written, [*total.aside, *other.aside],
    )  # fmt: skip


class BackfillProgress:
    """The backfill `name` over (lo, hi]; `tell` gets how far it is. The caller must hold the lake's lock `backfill`."""

    def __init__(self, windows: WindowLog, name: str, lo: int, hi: int, tell: Tell = tell_nobody) -> None:
        self._windows, self.name, self._lo, self._hi = windows, name, lo, hi
        self._tell, self._done, self._all = tell, 0, 0

    def list_remaining(self) -> list[Bounds]:
        """The landed windows that overlap the range, clipped to it, except those that are done.

        Raises ConfigError if the range is not within what has landed.
        """
        landed = self._windows.list_landed((self._lo, self._hi)) if self._lo < self._hi else []
        if not landed or landed[0][0] > self._lo or landed[-1][1] < self._hi:
            known = self._windows.find_landed_range()
            raise ConfigError(
                "the range is not within what has landed",
                where={"from": self._lo, "to": self._hi, "landed": f"{known[0]}-{known[1]}" if known else "nothing"},
                hint="a range is from (exclusive) to (inclusive); wait for the window that ends at or after it",
            )
        cut = [(max(lo, self._lo), min(hi, self._hi)) for lo, hi in landed]
        done = self._read_done()
        remaining = [bounds for bounds in cut if bounds not in done]
        self._done, self._all = len(cut) - len(remaining), len(cut)
        self._tell_done()
        return remaining

    def record_done(self, bounds: Bounds, rows: int, seconds: float, detail: Mapping[str, Any]) -> None:
        """Record that one window is done."""
        self._windows.record(WindowEvent(STAGE, *bounds, "done", rows, seconds, self.name, detail=detail))
        self._done += 1
        self._tell_done()

    def finish(self, detail: Mapping[str, Any]) -> None:
        """Record that all windows are done."""
        self._windows.record(WindowEvent(STAGE, self._lo, self._hi, _FINISHED, run_id=self.name, detail=detail))

    def _tell_done(self) -> None:
        self._tell(f"{self._done} of {self._all} windows")

    def _read_done(self) -> set[Bounds]:
        done: set[Bounds] = set()
        for event in self._windows.read_events(run_id=self.name, stage=STAGE):
            if event["state"] == _FINISHED:
                done.clear()
            else:
                done.add((event["lo"], event["hi"]))
        return done


@dataclass
class TouchedKeys:
    """`keys` by table of the target; `whole`: tables to compare completely; `gone`: former names of dropped tables."""

    keys: dict[Name, set[tuple[str | None, ...]]] = field(default_factory=dict)
    whole: set[Name] = field(default_factory=set)
    gone: set[Name] = field(default_factory=set)

    def remove_aside(self, aside: Collection[Name]) -> set[Name]:
        """Remove tables that are set `aside`, since bringing one back repairs it. Returns the removed tables."""
        left = {name for name in {*self.keys, *self.whole} if is_aside(aside, name)}
        self.keys = {name: keys for name, keys in self.keys.items() if name not in left}
        self.whole -= left
        return left

    def sort_keys(self) -> dict[Name, list[AnyKey]]:
        """The keys in a stable order."""
        return {name: sorted(keys, key=repr) for name, keys in sorted(self.keys.items())}


def find_touched_keys(
    replication: Replication, lo: int, hi: int, ts: int, tables: Iterable[VerifiedTable], *, most: int = 0
) -> TouchedKeys:
    """The keys of `tables`, the target's at `ts`, that row changes with lo < commit_ts <= hi touched.

    `most`: at most about this many keys of each source table, chosen pseudo-randomly, to bound memory; 0 = all.
    """
    return _Reader(replication, lo, hi, ts, tables, most).read()


class _Reader:
    def __init__(
        self, replication: Replication, lo: int, hi: int, ts: int, tables: Iterable[VerifiedTable], most: int
    ) -> None:
        self._most = most
        self._paths = LakePaths.of(replication)
        self._bounds = (lo, hi)
        self._tables = {fold_pair((table.table.db, table.table.name)): table for table in tables}
        rules = Rules.of(replication)
        self._audit, self._naming = Audit(self._paths, rules), Naming(rules)
        self._state = SchemaHistory(self._paths).read_state_at(ts)

    def read(self) -> TouchedKeys:
        touched = TouchedKeys()
        for (db, name, table_id), keys in self._read_keys_by_table():
            now = self._find_current_table(table_id, (db, name))
            if now is None:
                touched.gone.add((db, name))
            elif self._has_same_identity((db, name), now.table) and _matches_key_width(keys, now.table):
                touched.keys.setdefault(now.name, set()).update(keys)
            else:
                touched.whole.add(now.name)
        for whole in touched.whole:
            touched.keys.pop(whole, None)
        return touched

    def _find_current_table(self, table_id: int, then: Name) -> VerifiedTable | None:
        """The target's table that has the rows now, as it may have been renamed or recreated under its old name."""
        source = self._state.find_table(table_id)
        names = [then] if source is None else [self._naming.map_table(source.db, source.name), then]
        return next((self._tables[key] for db, name in names if (key := fold_pair((db, name))) in self._tables), None)

    def _has_same_identity(self, then: Name, now: TableDef) -> bool:
        """True if keys had the same form in the range as they have now."""
        definitions = self._audit.read_definitions(*then, *self._bounds)
        return all(_describe_identity(definition) == _describe_identity(now) for definition in definitions)

    def _read_keys_by_table(self) -> Iterator[tuple[tuple[str, str, int], set[tuple[str | None, ...]]]]:
        keys: dict[tuple[str, str, int], set[str]] = {}
        data = open_dataset(load_table(self._paths.locate_table(MUTATION.name)))
        for batch in data.to_batches(columns=list(_COLUMNS), filter=match_commit_ts(*self._bounds)):
            rows = pa.Table.from_batches([batch])
            for table in rows.group_by([Mutation.DB, Mutation.TABLE, Mutation.TABLE_ID]).aggregate([]).to_pylist():
                own = rows.filter(_mask_rows_of_table(rows, table))
                texts = {*own.column(Mutation.KEY).to_pylist(), *own.column(Mutation.NEW_KEY).to_pylist()} - {None}
                name = (table[Mutation.DB], table[Mutation.TABLE], table[Mutation.TABLE_ID])
                keys[name] = self._choose(keys.get(name, set()) | texts)
        for name, chosen in sorted(keys.items()):
            yield name, {tuple(json.loads(text)) for text in chosen}

    def _choose(self, texts: set[str]) -> set[str]:
        """The chosen keys: a different choice for each range, but the same one for the same range."""
        if not self._most or len(texts) <= self._most:
            return texts
        return set(heapq.nsmallest(self._most, texts, key=lambda text: compute_pseudo_random(text, self._bounds[1])))


def _matches_key_width(keys: Collection[tuple[str | None, ...]], now: TableDef) -> bool:
    """False if routes put extracted columns into the target's key, which the lake's keys lack."""
    return all(len(key) == len(now.find_identity().columns) for key in keys)


def compute_pseudo_random(text: str, seed: int) -> int:
    """A pseudo-random number, the same for the same key and `seed`."""
    return zlib.crc32(f"{seed} {text}".encode())


def _mask_rows_of_table(rows: pa.Table, table: dict[str, object]) -> pa.ChunkedArray:
    masks = [pc.equal(rows.column(name), value) for name, value in table.items()]
    return pc.and_(pc.and_(masks[0], masks[1]), masks[2])


def _describe_identity(table: TableDef) -> tuple[object, ...]:
    columns = ((name, table.find_column(name)) for name in table.find_identity().columns)
    return table.find_identity().kind, tuple(
        (fold_name(name), column and derive_cast_form(column)) for name, column in columns
    )
