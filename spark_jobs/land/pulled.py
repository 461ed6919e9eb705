"""What was pulled of a window, by ranges of commit_ts: counts, DDL and files of `binlog` that are not committed yet.

A range has all rows of all pumps, so duplicates and conflicts between pumps stay inside it. Nothing of it counts before
land has proved the window complete and committed the files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.common.lakecolumns import Binlog
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.store import delete_file
from binlake.lake.tables import BINLOG
from binlake.rows.schema import WindowDdl
from binlake.spark_jobs.engine.engine import Keeper
from binlake.spark_jobs.engine.rows import MemoryRows, Rows, list_written_rows, read_table
from binlake.spark_jobs.job.decoding import DecodeAhead, DecodedFiles
from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.land.binlogfiles import BINLOG_ARROW, Landed, LargeFiles, WrittenTransaction, measure_landed
from binlake.spark_jobs.land.pump_source import digest_content

GROUP_BYTES = 8 << 20
"""Bytes of a row group of `binlog`."""
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class PumpPart:
    """One pump's part: commit_ts of its proof (0 = no proof), transactions, DDL among them, newest schema version."""

    proof: int
    entities: int
    ddls: int
    schema_version: int


NOTHING = PumpPart(0, 0, 0, 0)


@dataclass(frozen=True)
class LandedTransactions:
    """Transactions of `binlog`, each once, in files that are not committed; `rows`: the same, to be read."""

    parts: tuple[TablePart, ...]
    landed: Landed
    rows: tuple[Rows, ...]


@dataclass(frozen=True)
class PulledRange:
    """All that the pumps have of (lo, hi], by node id; `conflict`: the least commit_ts with two contents.

    `stored`: its transactions, without the `large` ones; `decoded`: its rows of `mutation`, if the task has made them.
    """

    bounds: Bounds
    pumps: Mapping[str, PumpPart]
    ddls: tuple[WindowDdl, ...]
    conflict: int | None
    stored: LandedTransactions
    decoded: DecodedFiles | None = None
    large: tuple[WrittenTransaction, ...] = ()

    @property
    def bytes(self) -> int:
        """Payload bytes of all its transactions."""
        return self.stored.landed.bytes + sum(one.landed.bytes for one in self.large)

    @property
    def rows(self) -> tuple[Rows, ...]:
        """All its transactions, to be read."""
        return (*self.stored.rows, *(one.rows for one in self.large))


class Pulled:
    """The ranges of a window, in order and without a gap.

    `folder`: where their files of `binlog` are; `decode`: how tasks have also decoded them.
    """

    def __init__(self, ranges: Sequence[PulledRange], folder: str, decode: DecodeAhead | None = None) -> None:
        self.ranges = tuple(ranges)
        self.decode = decode
        self._folder = folder

    @property
    def decoded(self) -> tuple[DecodedFiles, ...] | None:
        """The rows of `mutation` of all ranges; None if one has none."""
        found = tuple(one.decoded for one in self.ranges if one.decoded is not None)
        return found if len(found) == len(self.ranges) else None

    @property
    def hi(self) -> int:
        """The end of the last range."""
        return self.ranges[-1].bounds.hi

    def survey(self) -> dict[str, PumpPart]:
        """Each pump's part, by node id. Its proof is that of the first range that is not proved, else of the last."""
        parts: dict[str, PumpPart] = {}
        for one in self.ranges:
            for pump in {pump for other in self.ranges for pump in other.pumps}:
                parts[pump] = _add_part(parts.get(pump), one.pumps.get(pump, NOTHING), one.bounds)
        return parts

    def find_conflict(self) -> int | None:
        """The smallest commit_ts for which two pumps hold different content."""
        return min((one.conflict for one in self.ranges if one.conflict is not None), default=None)

    def read_ddls(self, bounds: Bounds) -> list[WindowDdl]:
        """The DDL binlogs of `bounds`, without duplicates, in commit order, without their jobs."""
        return [ddl for one in self.ranges for ddl in one.ddls if bounds.lo < ddl.commit_ts <= bounds.hi]

    def find_first_row(self, since: int, version: int = 0) -> int | None:
        """Smallest commit_ts >= `since` of a transaction with row changes, of schema `version` or a later one."""
        ranges = (one.rows for one in self.ranges if one.bounds.hi >= since)
        found = ([_find_first_row(part, since, version) for part in rows] for rows in ranges)
        least = (min((ts for ts in own if ts is not None), default=None) for own in found)
        return next((ts for ts in least if ts is not None), None)

    def cut(self, hi: int, keeper: Keeper) -> Pulled:
        """What is at or below `hi`; the files of the range that `hi` divides are written again."""
        ranges = [one for one in self.ranges if one.bounds.lo < hi]
        if ranges and ranges[-1].bounds.hi > hi:
            last = ranges[-1]
            stored = _write_again(last.stored.rows, hi, self._folder, keeper)
            large = tuple(one for one in last.large if one.commit_ts <= hi)
            ranges[-1] = PulledRange(
                replace(last.bounds, hi=hi), last.pumps, last.ddls, last.conflict, stored, None, large
            )
        return Pulled(ranges, self._folder, self.decode)

    def sum_stored(self) -> LandedTransactions:
        """The files, counts and rows of all ranges."""
        large = [one for part in self.ranges for one in part.large]
        parts = (*(part for one in self.ranges for part in one.stored.parts), *(one.part for one in large))
        landed = Landed.sum_parts([*(one.stored.landed for one in self.ranges), *(one.landed for one in large)])
        return LandedTransactions(parts, landed, tuple(rows for one in self.ranges for rows in one.rows))

    def list_whole_rows(self) -> tuple[Rows, ...]:
        """The rows of all transactions that are not in chunks."""
        return tuple(rows for one in self.ranges for rows in one.stored.rows)

    def discard(self, but: Pulled | None = None) -> None:
        """Delete the files, which nothing refers to, except those of `but`."""
        for file in self._list_files() - (but._list_files() if but is not None else set()):
            delete_file(file)

    def forget_decoded(self) -> Pulled:
        """The same without the rows of `mutation`."""
        return Pulled([replace(one, decoded=None) for one in self.ranges], self._folder)

    def _list_files(self) -> set[str]:
        decoded = [one.decoded for one in self.ranges if one.decoded is not None]
        stored = {f"{self._folder}/{part.path}" for part in self.sum_stored().parts}
        return stored | {f"{one.folder}/{part.path}" for one in decoded for part in one.parts}


def _add_part(before: PumpPart | None, part: PumpPart, bounds: Bounds) -> PumpPart:
    if before is None:
        return part
    # Once a range is not proved, later proofs prove nothing about it.
    proof = part.proof if before.proof >= bounds.lo else before.proof
    return PumpPart(
        proof, before.entities + part.entities, before.ddls + part.ddls, max(before.schema_version, part.schema_version)
    )


def digest_pulled(
    rows: pa.Table,
    bounds: Bounds,
    folder: str,
    keeper: Keeper,
    decode: DecodeAhead | None = None,
    files: LargeFiles | None = None,
) -> PulledRange:
    """The range `bounds` of `rows` (`pump_source.SCHEMA_DDL`, with proofs); writes its transactions to files.

    `decode`: also writes its rows of `mutation`; `files`: has its large transactions.
    """
    own = _select_transactions(rows, bounds)
    shared = _find_shared(own)
    pumps = {pump: _build_part(rows, pump, bounds) for pump in pc.unique(rows[Binlog.PUMP]).to_pylist()}
    conflict = _find_conflict(own, shared) if shared else None
    # One copy of each transaction; the smallest node id wins, so that a second attempt chooses the same one.
    left_out: dict[str, list[int]] = defaultdict(list)
    for ts, nodes in shared.items():
        for pump in sorted(set(nodes))[1:]:
            left_out[pump].append(ts)
    once = sort_rows(_leave_out(own, left_out))
    large: tuple[WrittenTransaction, ...] = ()
    if files is not None and once["written"].null_count < once.num_rows:
        is_written = pc.is_valid(once["written"])
        heads, once = once.filter(is_written), once.filter(pc.invert(is_written))
        named = zip(heads[Binlog.PUMP].to_pylist(), heads[Binlog.COMMIT_TS].to_pylist(), strict=True)
        large, decode = tuple(files.take(*one) for one in named), None
    stored = write_binlog(once, folder, keeper)
    decoded = decode(once) if decode is not None else None
    return PulledRange(bounds, pumps, _list_ddls(own), conflict, stored, decoded, large)


def write_binlog(rows: pa.Table, folder: str, keeper: Keeper) -> LandedTransactions:
    """Write `rows`, sorted, to files of `binlog` in `folder`, without a commit."""
    days = (np.asarray(rows[Binlog.COMMIT_TS]) >> 18) // _DAY_MS
    dated = pa.array(days.astype(np.int32)).cast(pa.date32())
    table = rows.append_column(Binlog.COMMIT_DATE, dated).select(BINLOG_ARROW.names).cast(BINLOG_ARROW)
    kept: list[pa.Table] = []
    parts = write_parts(folder, BINLOG, keeper.keep(_cut_by_bytes(table), kept))
    held = sum(one.num_rows for one in kept) == table.num_rows
    found: tuple[Rows, ...] = (MemoryRows(table),) if held else tuple(list_written_rows(folder, parts, table.nbytes))
    return LandedTransactions(tuple(parts), measure_landed(table), found)


def _cut_by_bytes(table: pa.Table) -> Iterator[pa.Table]:
    step = max(1, GROUP_BYTES * table.num_rows // max(1, table.nbytes))
    yield from (table.slice(first, step) for first in range(0, table.num_rows, step))


def _write_again(rows: Iterable[Rows], hi: int, folder: str, keeper: Keeper) -> LandedTransactions:
    # The day is not in the files, but in their folders' names.
    stored = pa.schema([kind for kind in BINLOG_ARROW if kind.name != Binlog.COMMIT_DATE])
    table = read_table(rows, stored)
    return write_binlog(table.filter(pc.less_equal(table[Binlog.COMMIT_TS], hi)), folder, keeper)


def _find_first_row(rows: Rows, since: int, version: int) -> int | None:
    least: list[int] = []
    for batch in rows.read([Binlog.COMMIT_TS, Binlog.KIND, Binlog.SCHEMA_VERSION]):
        own = pc.and_(pc.equal(batch[Binlog.KIND], "dml"), pc.greater_equal(batch[Binlog.SCHEMA_VERSION], version))
        own = pc.and_(own, pc.greater_equal(batch[Binlog.COMMIT_TS], since))
        found = pc.min(batch[Binlog.COMMIT_TS].filter(own)).as_py()
        least += [] if found is None else [found]
    return min(least, default=None)


def _find_shared(own: pa.Table) -> dict[int, list[str]]:
    """The pumps of each transaction that more than one pump delivered."""
    first = own.filter(pc.equal(own[Binlog.CHUNK], 0))
    ts = np.asarray(first[Binlog.COMMIT_TS])
    order = np.argsort(ts, kind="stable")
    again = np.flatnonzero(np.diff(ts[order]) == 0)
    rows = np.unique(order[np.concatenate((again, again + 1))])
    pumps: dict[int, list[str]] = defaultdict(list)
    for one, pump in zip(ts[rows].tolist(), first[Binlog.PUMP].take(pa.array(rows)).to_pylist(), strict=True):
        pumps[one].append(pump)
    return dict(pumps)


def _find_conflict(own: pa.Table, shared: Mapping[int, list[str]]) -> int | None:
    wanted = np.isin(np.asarray(own[Binlog.COMMIT_TS]), list(shared)) & (np.asarray(own[Binlog.CHUNK]) == 0)
    rows = own.filter(pa.array(wanted))
    contents: dict[int, set[str]] = defaultdict(set)
    values = (rows[name].to_pylist() for name in (Binlog.COMMIT_TS, "content", Binlog.PAYLOAD))
    for ts, content, payload in zip(*values, strict=True):
        contents[ts].add(content or digest_content(payload))
    return min((ts for ts, found in contents.items() if len(found) > 1), default=None)


def _leave_out(own: pa.Table, left_out: Mapping[str, list[int]]) -> pa.Table:
    if not left_out:
        return own
    ts, doubled = np.asarray(own[Binlog.COMMIT_TS]), np.zeros(own.num_rows, np.bool_)
    for pump, commits in left_out.items():
        doubled |= np.isin(ts, commits) & _convert_flags(pc.equal(own[Binlog.PUMP], pump))
    return own.filter(pa.array(~doubled))


def _list_ddls(own: pa.Table) -> tuple[WindowDdl, ...]:
    ddls = own.filter(pc.and_(pc.equal(own[Binlog.KIND], "ddl"), pc.equal(own[Binlog.CHUNK], 0)))
    columns = (Binlog.COMMIT_TS, Binlog.START_TS, Binlog.JOB_ID, Binlog.SCHEMA_STATE, "query")
    rows = zip(*(ddls[name].to_pylist() for name in columns), strict=True)
    return tuple(WindowDdl(*row) for row in sorted(set(rows)))


def _build_part(rows: pa.Table, pump: str, bounds: Bounds) -> PumpPart:
    own = _convert_flags(pc.equal(rows[Binlog.PUMP], pump))
    ts, version = np.asarray(rows[Binlog.COMMIT_TS]), np.asarray(rows[Binlog.SCHEMA_VERSION])
    is_proof, is_ddl = (_convert_flags(pc.equal(rows[Binlog.KIND], kind)) & own for kind in ("proof", "ddl"))
    first = own & ~is_proof & _mark_within(ts, bounds) & (np.asarray(rows[Binlog.CHUNK]) == 0)
    return PumpPart(
        proof=int(ts[is_proof].max(initial=0)),
        entities=int(first.sum()),
        ddls=int((first & is_ddl).sum()),
        schema_version=int(version[first & ~is_ddl].max(initial=0)),
    )


def _select_transactions(rows: pa.Table, bounds: Bounds) -> pa.Table:
    """Rows of transactions within `bounds`, without proofs."""
    own = _mark_within(np.asarray(rows[Binlog.COMMIT_TS]), bounds) & _convert_flags(
        pc.not_equal(rows[Binlog.KIND], "proof")
    )
    batches, at = list[pa.RecordBatch](), 0
    for batch in rows.to_batches():
        inside = own[at : at + batch.num_rows]
        at += batch.num_rows
        # Most batches are taken whole, without copying payloads.
        batches.append(batch if inside.all() else batch.filter(pa.array(inside)))
    return pa.Table.from_batches(batches, rows.schema)


def _mark_within(ts: NDArray[np.int64], bounds: Bounds) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (ts > bounds.lo) & (ts <= bounds.hi)
    return inside


def _convert_flags(flags: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(flags, np.bool_)


def sort_rows(rows: pa.Table) -> pa.Table:
    """`rows` by commit_ts and chunk."""
    ts, chunk = np.asarray(rows[Binlog.COMMIT_TS]), np.asarray(rows[Binlog.CHUNK])
    if (np.diff(ts) > 0).all():
        return rows
    order = np.lexsort((chunk, ts))
    # The chunks of a huge transaction arrive in order: to take them would be to copy them.
    return rows if (np.diff(order) == 1).all() else rows.take(pa.array(order))
