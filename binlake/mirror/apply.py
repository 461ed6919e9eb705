"""Applies one component's window to its mirrors, segment by segment: first the DDL, then the net row changes.

Rules: hazards R-32 (positions never decrease), R-33 (each DDL and each window end gets a row in `mirror_version`). A
table is complete up to the position in its Delta log, so a rerun after a crash applies the rest exactly once.

No log has the rows of partitions that a DDL removed, so they are found by their values, as the source found their
partition (R-34).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from binlake.ddl.definitions import SegmentTable
from binlake.errors import SchemaError
from binlake.lake.paths import LakePaths
from binlake.mirror.plan import PARTITIONS, ComponentPlan, MirrorEffect, Name, derive_effects
from binlake.mirror.replica import Replica
from binlake.mirror.rows import Reshaper, read_mirror_texts, select_last_changes
from binlake.mirror.versions import IN_PART, MirrorState
from binlake.rows.schema import TableDef
from binlake.rows.schema.partitions import find_partition


class RemovedPartitions:
    """The partitions of `before` that `after` does not have. Each method raises SchemaError if it cannot be told."""

    def __init__(self, before: TableDef, after: TableDef) -> None:
        self._before = before
        self._gone = set(before.partition_ids) - set(after.partition_ids)
        self._types = {column.name: column.tp for column in before.row_columns}

    def count_rows(self, batch: pa.RecordBatch) -> int:
        """The number of rows of `batch` (of the mirror of `before`) in the removed partitions."""
        return int(self._find_rows(batch).sum())

    def drop_rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """`batch` without those rows."""
        kept = batch.filter(pa.array(~self._find_rows(batch)))
        if kept.num_rows:
            yield kept

    def _find_rows(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        texts = read_mirror_texts(self._before, pa.Table.from_batches([batch]))
        rows = (dict(zip(texts, values, strict=True)) for values in zip(*texts.values(), strict=True))
        partition = self._before.raw["partition"]
        found = (find_partition(partition, row, self._types) in self._gone for row in rows)
        return np.fromiter(found, np.bool_, batch.num_rows)


log = structlog.get_logger()

CHUNK_BYTES = 64 << 20
"""Arrow bytes of keyed net changes per MERGE. Keyless changes are applied in a single commit."""
LARGE_CHUNK_BYTES = 16 << 20
"""The same in a window that is too large for this process to hold."""

_UNCONVERTED = "a DDL converted or filled values in a way that Binlake cannot reproduce"
_UNKNOWN = "recovered at the source with rows that this lake never received"


@dataclass
class MirroredRows:
    """The result: a version row per DDL and touched table, the rows merged, and the values stored as text (unfit)."""

    versions: list[MirrorState] = field(default_factory=list)
    rows: int = 0
    unfit: int = 0


def apply_component(
    plan: ComponentPlan,
    paths: LakePaths,
    retention_days: int,
    net: Iterable[tuple[SegmentTable, pa.Table]],
    chunk_bytes: int = CHUNK_BYTES,
) -> MirroredRows:
    """Apply the plan's DDL and `net`: (place, net changes: op, images, copies, last_commit_ts), in order of places.

    `chunk_bytes` as CHUNK_BYTES.
    """
    return _Run(plan, paths, retention_days, chunk_bytes).run(net)


class _Run:
    def __init__(self, plan: ComponentPlan, paths: LakePaths, retention_days: int, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._plan = plan
        self._paths = paths
        self._days = retention_days
        self._replicas: dict[Name, Replica] = {}
        self._state = dict(plan.known)
        self._before_ddl = dict(plan.known)
        self._touched: set[Name] = set()
        self._done = MirroredRows()

    def run(self, net: Iterable[tuple[SegmentTable, pa.Table]]) -> MirroredRows:
        segment = 0
        for place, slices in groupby(net, key=lambda entry: entry[0]):
            segment = self._catch_up(segment, place.segment)
            self._apply_rows(self._plan.tables[place], place.segment, (rows for _, rows in slices))
        self._catch_up(segment, len(self._plan.ddls))
        for name in sorted(self._touched):
            self._get_replica(name).tidy()
            self._record(name, self._plan.segments.hi, self._get_replica(name).version)
        return self._done

    def _catch_up(self, segment: int, until: int) -> int:
        for ddl in self._plan.ddls[segment:until]:
            self._before_ddl = dict(self._state)
            for effect in derive_effects(ddl):
                self._apply_effect(effect, ddl.commit_ts)
        return max(segment, until)

    def _get_replica(self, name: Name) -> Replica:
        if name not in self._replicas:
            self._replicas[name] = Replica(self._paths.locate_mirror(*name), self._days)
            known = self._plan.known.get(name)
            if known is not None and not known.dropped:
                self._replicas[name].require_version(known.delta_version)
        return self._replicas[name]

    def _record(self, name: Name, hi: int, version: int) -> None:
        row = replace(self._look_up_version(name), delta_version=version, lo=self._plan.segments.lo, hi=hi)
        self._state[name] = row
        self._done.versions.append(row)

    def _look_up_version(self, name: Name, state: Mapping[Name, MirrorState] | None = None) -> MirrorState:
        """The known state of a table. A table that no window touched is older than the lake: its rows are unknown."""
        lo = self._plan.segments.lo
        known = self._state if state is None else state
        return known.get(name) or MirrorState(*name, -1, lo, lo, inexact=IN_PART)

    def _mark(self, name: Name, *, dropped: bool = False, inexact: str = "") -> None:
        self._state[name] = replace(self._look_up_version(name), dropped=dropped, inexact=inexact)

    def _apply_effect(self, effect: MirrorEffect, at: int) -> None:
        name = (effect.table.db, effect.table.name)
        replica = self._get_replica(name)
        behind = replica.read_position() < at
        {
            "create": self._create,
            "adopt": self._adopt,
            "recover": self._recover,
            "truncate": self._truncate,
            "alter": self._alter,
            "copy": self._copy,
            "drop": self._drop,
            "remove": self._remove,
            "inexact": self._mark_inexact,
        }[effect.kind](effect, name, at, behind)
        if effect.kind == "drop":
            self._touched.discard(name)
        else:
            self._touched.add(name)
        version = replica.version if behind else replica.find_version_at(at)
        self._record(name, at, -1 if version is None else version)

    def _create(self, effect: MirrorEffect, name: Name, at: int, behind: bool) -> None:
        self._mark(name)
        if behind:
            self._get_replica(name).create(effect.table, at)

    def _adopt(self, effect: MirrorEffect, name: Name, at: int, behind: bool) -> None:
        self._create(effect, name, at, behind)
        self._mark(name, inexact=IN_PART)

    def _recover(self, effect: MirrorEffect, name: Name, at: int, behind: bool) -> None:
        # The mirror of a dropped table still has its rows, unless the name was used again.
        state = self._state.get(name)
        kept = state is not None and state.dropped and self._get_replica(name).exists()
        if not kept and behind:
            self._get_replica(name).create(effect.table, at)
        self._mark(name, inexact=state.inexact if kept and state else _UNKNOWN)

    def _truncate(self, effect: MirrorEffect, name: Name, at: int, behind: bool) -> None:
        self._mark(name)
        if not behind:
            return
        if self._get_replica(name).exists():
            self._get_replica(name).truncate(at)
        else:
            self._get_replica(name).create(effect.table, at)

    def _alter(self, effect: MirrorEffect, name: Name, at: int, behind: bool) -> None:
        replica = self._get_replica(name)
        if effect.source is None:
            return
        reshaper = Reshaper(effect.source, effect.table, effect.renamed, effect.moment)
        if not behind:
            self._record_lost_conversions(reshaper, name, at)
            return
        if not replica.exists():
            replica.create(effect.table, at)
            return
        appended = reshaper.find_appended_fields()
        if reshaper.keeps_layout():
            return
        if appended:
            replica.add_columns(appended, at)
            return
        replica.reshape(reshaper, effect.table, at)
        self._record_conversions(reshaper, name)

    def _record_lost_conversions(self, reshaper: Reshaper, name: Name, at: int) -> None:
        """Record the findings of a run that died between rewriting the mirror and recording them."""
        former = self._get_replica(name).find_version_at(at - 1) if reshaper.converts() else None
        if former is not None:
            for _ in reshaper.reshape_batches(iter(self._get_replica(name).read_batches(former))):
                pass
            self._record_conversions(reshaper, name)

    def _record_conversions(self, reshaper: Reshaper, name: Name) -> None:
        self._done.unfit += reshaper.unfit
        if reshaper.unknown:
            self._mark(name, inexact=f"{_UNCONVERTED}: {reshaper.unknown}")

    def _copy(self, effect: MirrorEffect, name: Name, at: int, behind: bool) -> None:
        if effect.source is None:
            return
        old = (effect.source.db, effect.source.name)
        source = self._get_replica(old)
        # In a swap of names, the other table is marked already, so use the state before the DDL.
        self._mark(name, inexact=self._look_up_version(old, self._before_ddl).inexact)
        version = source.find_version_at(at - 1)
        if not behind:
            return
        if version is None:
            self._get_replica(name).create(effect.table, at)
            return
        reshaper = Reshaper(effect.source, effect.table, effect.renamed, effect.moment)
        self._get_replica(name).fill(effect.table, reshaper.reshape_batches(iter(source.read_batches(version))), at)
        self._record_conversions(reshaper, name)

    def _drop(self, _effect: MirrorEffect, name: Name, _at: int, _behind: bool) -> None:
        # Keep the reason why it is inexact: it may be recovered with its rows.
        self._mark(name, dropped=True, inexact=self._look_up_version(name).inexact)

    def _remove(self, effect: MirrorEffect, name: Name, at: int, behind: bool) -> None:
        """Remove the rows of removed partitions; if they cannot be told, the mirror is inexact from here on."""
        replica = self._get_replica(name)
        version = replica.find_version_at(at - 1)
        if effect.source is None or version is None:
            return
        removed = RemovedPartitions(effect.source, effect.table)
        try:
            lost = sum(removed.count_rows(batch) for batch in replica.read_batches(version))
        except SchemaError as error:
            log.warning("mirror_partition_unknown", table=".".join(name), reason=error.message)
            self._mark(name, inexact=PARTITIONS)
            return
        if lost and behind:
            kept = (kept for batch in replica.read_batches(version) for kept in removed.drop_rows(batch))
            replica.fill(effect.table, kept, at)

    def _mark_inexact(self, effect: MirrorEffect, name: Name, _at: int, _behind: bool) -> None:
        self._mark(name, inexact=effect.reason)

    def _apply_rows(self, table: TableDef, segment: int, slices: Iterator[pa.Table]) -> None:
        name = (table.db, table.name)
        replica = self._get_replica(name)
        since, until = self._plan.segments.find_bounds(segment)
        self._touched.add(name)
        if replica.read_position() >= until - 1 and not self._has_only_ddl(replica, segment, until - 1):
            return
        if not replica.exists():
            replica.create(table, since - 1)
        if table.find_identity().kind == "row":
            net = pa.concat_tables(slices)
            replica.merge_keyless(table, net, until - 1)
            self._done.rows += net.num_rows
            return
        if self._plan.is_base and replica.has_base_only():
            self._done.rows += replica.append_base(table, slices, until - 1)
            return
        # A key is in one chunk only, unless it may be repeated: what other chunks have added is not searched for it.
        passed = None if self._plan.is_repeated else set[str]()
        for net, last in _join_slices(slices, self._chunk_bytes):
            if self._plan.is_repeated:
                net = select_last_changes(table, net)
            replica.merge_keyed(table, net, until - 1 if last else None, passed)
            self._done.rows += net.num_rows

    def _has_only_ddl(self, replica: Replica, segment: int, end: int) -> bool:
        """True when the position is that of the segment's DDL, but rows that precede it are not applied yet."""
        ddl = self._plan.ddls[segment - 1] if segment else None
        if ddl is None or ddl.since >= ddl.commit_ts or replica.read_position() != end or ddl.commit_ts != end:
            return False
        return not replica.has_merged(end)


def _join_slices(slices: Iterator[pa.Table], most_bytes: int) -> Iterator[tuple[pa.Table, bool]]:
    """Join slices to tables of about `most_bytes`; the flag says whether it is the last one."""
    pending: list[pa.Table] = []
    size = 0
    for piece in slices:
        if size >= most_bytes:
            yield pa.concat_tables(pending), False
            pending, size = [], 0
        pending.append(piece)
        size += piece.nbytes
    yield pa.concat_tables(pending), True
