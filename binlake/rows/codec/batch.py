"""Row changes of many transactions as columns, for Arrow: one `MutationBatch` per task (DESIGN 2).

Use in `mapInArrow`:

    batch = MutationBatch(route=lambda table: (table.db, table.name))     # route returns None = filtered out
    for payload, commit_ts, start_ts in rows:
        batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
        if batch.is_full:
            yield from batch.take_batches()                               # pyarrow.RecordBatches; empties the batch
    yield from batch.take_batches()

Rule: adding a payload splits it and checks its lists. Rows are decoded when they are read: rows of one definition and
kind together (binlake.rows.codec.walk), and rows that this cannot decode one by one, in order. Columns, their order
and their types are those of the lake's table `mutation` (`MUTATION_SCHEMA`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from binlake.rows.codec.assemble import MUTATION_SCHEMA, build_block_columns, get_block, join_keys, join_maps
from binlake.rows.codec.emptied import (
    Doubt,
    Known,
    PartitionRows,
    derive_side_definition,
    is_late,
    require_equal_filters,
    without_lost_rows,
)
from binlake.rows.codec.lanes import Bytes, Ints, Lanes
from binlake.rows.codec.largerows import LargeBinlog, Pieces, TakenRows, iterate_rows
from binlake.rows.codec.pendingrows import (
    FIELDS,
    FIRST,
    ROWS,
    TABLE,
    PendingRows,
    RowGroup,
    Waiting,
    build_columns,
    compute_cuts,
    cut,
)
from binlake.rows.codec.secondwrites import (
    LastWrite,
    SchemaMoment,
    SecondWrites,
    may_be_twice,
    without_echoes,
    without_second_writes,
)
from binlake.rows.codec.splits import MutationRun, Splits, group_positions, split_all
from binlake.rows.codec.tabledecoder import build_decoder_lookup
from binlake.rows.codec.transaction import (
    ALL_KINDS,
    DecodeStats,
    RowLists,
    TableLookup,
    Wanted,
    read_mutations,
    select_every_kind,
    select_wanted_rows,
    split,
)
from binlake.rows.codec.values import InvalidText
from binlake.rows.schema.info import TableDef
from binlake.rows.schema.window import build_unknown_table_error
from binlake.tso import LOGICAL_BITS
from binlake.wire import binlog_pb2 as pb

Route = Callable[[TableDef], tuple[str, str] | None]
"""Source definition -> (db, table) at the target, or None when a filter excludes the table."""

Places = Callable[[Ints], tuple[Sequence[TableLookup], Ints]]
"""commit_ts of many transactions -> (the definitions valid at them, the index of each transaction's definitions)."""

BATCH_ROWS = 32_768
BATCH_BYTES = 16 << 20
"""A batch is full at this many rows or bytes of binlogs. Building its columns takes about 10 times those bytes."""

_MS_PER_DAY = 86_400_000
_OPS = ("insert", "update", "", "", "delete")
"""The op text of each kind number in a `sequence`."""
_KINDS = 8
_ALONE = -2
_FEWEST_NEIGHBOURS = 16
"""Least average distance between two binlogs that are split alone: below it, numpy's calls cost more than they save."""
_Names4 = tuple[str, str, str, str]


def keep_name(table: TableDef) -> tuple[str, str]:
    """The route that changes nothing."""
    return table.db, table.name


class MutationBatch:
    """Collects transactions and returns their row changes column by column.

    Raises the errors of `decode_transaction` when a transaction is added or when its rows are read; after an error the
    batch is unusable. Rows of tables that the route excludes are not decoded, nor are rows of a kind that `kinds` does
    not list for their table; `stats` counts both. `invalid_text`: how to handle text that is not UTF-8;
    `second_writes`: how to handle second writes (binlake.rows.codec.secondwrites); `partition_rows`: how to handle rows
    that may have gone with their partition (binlake.rows.codec.emptied).
    """

    def __init__(
        self,
        route: Route = keep_name,
        kinds: Wanted = select_every_kind,
        invalid_text: InvalidText = "refuse",
        second_writes: SecondWrites = "refuse",
        partition_rows: PartitionRows = "refuse",
    ) -> None:
        self.stats = DecodeStats()
        self._route = route
        self._kinds_of = kinds
        self._decoder_of = build_decoder_lookup(invalid_text, self.stats.latin1_texts)
        self._second_writes = second_writes
        self._partition_rows = partition_rows
        self._known: dict[TableDef, Collection[str]] = {}
        self._routed: dict[TableDef, _Names4 | None] = {}
        self._sides: Known = {}
        self._last: LastWrite | None = None
        self._clear()

    def _clear(self) -> None:
        self._blocks: list[Ints] = []
        self._mutations: list[tuple[int, int, int, int, int, int, int]] = []
        self._kinds: list[bytes] = []
        self._tables: dict[TableDef, int] = {}
        self._rows = PendingRows()
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """True when the rows should be taken (BATCH_ROWS, BATCH_BYTES)."""
        return self._count >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, payload: bytes, commit_ts: int, start_ts: int, tables: TableLookup) -> int:
        """Split a transaction by the definitions `tables` at its commit_ts; returns the rows added, after filters."""
        had = self._count
        value = split(payload, commit_ts, start_ts)
        version = value.schema_version
        for seq, table_id, definition, rows in read_mutations(value, commit_ts, tables, self.stats):
            table = definition
            if definition.emptied:
                table = derive_side_definition(definition, table_id, value, payload, tables, self._sides)
                require_equal_filters(table, commit_ts, self._look_up_kinds)
            for first, run in self._select_runs(table, rows, payload, SchemaMoment(version, commit_ts)):
                number = self._tables.setdefault(table, len(self._tables))
                self._add_rows(number * _KINDS, run)
                self._mutations.append((commit_ts, start_ts, version, number, seq + first, len(run.kinds), table_id))
        # A transaction without wanted rows takes no memory, so its bytes do not count towards a full batch.
        self._bytes += len(payload) if self._count > had else 0
        return self._count - had

    def add_large(
        self, large: LargeBinlog, pieces: Pieces, commit_ts: int, start_ts: int, tables: TableLookup
    ) -> Iterator[None]:
        """`add` a binlog whose bytes are read in `pieces`; yields when rows should be taken.

        For one that `may_add_large` accepts. Raises SchemaError.
        """
        seq = 0
        for mutation in large.mutations:
            table, count = tables.find_table(mutation.table_id), len(mutation.kinds)
            if table is None:
                if not tables.is_gone(mutation.table_id):
                    raise build_unknown_table_error(mutation.table_id, commit_ts)
                self.stats.gone_rows[mutation.table_id] += count
            elif not (wanted := self._look_up_kinds(table)):
                self.stats.table_rows += count
            else:
                moment = (commit_ts, start_ts, large.version)
                for taken in iterate_rows(pieces, mutation):
                    self._add_taken(table, taken, seq, wanted, (*moment, mutation.table_id))
                    if self.is_full:
                        yield
            seq += count

    def may_add_large(self, large: LargeBinlog, tables: TableLookup) -> bool:
        """False if a table needs to know the whole transaction, or its rows may be a block of columns."""
        known = [tables.find_table(mutation.table_id) for mutation in large.mutations]
        is_late_one = any(table is not None and (table.emptied or is_late(table, large.version)) for table in known)
        return not is_late_one and sum(len(mutation.kinds) for mutation in large.mutations) > 1

    def _add_taken(
        self, table: TableDef, taken: TakenRows, seq: int, wanted: Collection[str], moment: tuple[int, int, int, int]
    ) -> None:
        commit_ts, start_ts, version, table_id = moment
        number = self._tables.setdefault(table, len(self._tables))
        kept = np.isin(taken.kinds, [kind for kind in taken.rows if _OPS[kind] in wanted])
        borders = np.flatnonzero(np.diff(kept, prepend=False, append=False))
        for first, last in borders.reshape(-1, 2).tolist():
            place = seq + taken.first + first
            self._mutations.append((commit_ts, start_ts, version, number, place, last - first, table_id))
        self._kinds.append(taken.kinds[kept].tobytes())
        self._count += int(kept.sum())
        self.stats.event_rows += int((~kept).sum())
        for kind, lanes in taken.rows.items():
            if _OPS[kind] in wanted:
                self._rows.add(lanes, {number * _KINDS + kind: (lanes.starts, lanes.ends)})
                self._bytes += int((lanes.ends - lanes.starts).sum())

    def read_block(
        self, value: pb.PrewriteValue, commit_ts: int, start_ts: int, tables: TableLookup
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a transaction that `find_column_blocks` has found, after filters; counts what these leave out.

        The batch must be empty, so that rows stay in order. Raises WireError, SchemaError.
        """
        assert not self._count, "take the rows of the transactions before a block first"
        table_id, block, count = get_block(value)
        table = tables.find_table(table_id)
        if table is None:
            if not tables.is_gone(table_id):
                raise build_unknown_table_error(table_id, commit_ts)
            self.stats.gone_rows[table_id] += count
        elif "insert" not in (kinds := self._look_up_kinds(table)):
            self.stats.event_rows += count if kinds else 0
            self.stats.table_rows += 0 if kinds else count
        else:
            moments = commit_ts, start_ts, value.schema_version
            columns = build_block_columns(block, table, cast(_Names4, self._look_up_names(table)), moments)
            yield pa.RecordBatch.from_arrays(columns, schema=MUTATION_SCHEMA)

    def _select_runs(
        self, table: TableDef, rows: RowLists, payload: bytes, moment: SchemaMoment
    ) -> Iterator[tuple[int, RowLists]]:
        wanted, runs = self._look_up_kinds(table), iter([(0, rows)])
        if wanted and may_be_twice(table, moment.version):
            decoder, counted = self._decoder_of(table), self.stats.taken_once
            runs = without_second_writes(decoder, rows, payload, moment, self._second_writes, counted)
        for at, part in runs:
            yield from ((at + first, run) for first, run in select_wanted_rows(part, wanted, self.stats))

    def add_all(
        self, payloads: Sequence[bytes] | pa.BinaryArray, commit_ts: Ints, start_ts: Ints, places: Places
    ) -> None:
        """`add` each transaction by the definitions at its commit_ts; small binlogs are split together (`splits`)."""
        lanes = Lanes.of(payloads)
        splits, (lookups, where) = split_all(lanes), places(commit_ts)
        groups, odd = self._group_by_table(splits, lookups, where)
        if len(odd) > len(lanes) // _FEWEST_NEIGHBOURS:
            odd = list(range(len(lanes)))
        low, times = 0, np.stack([commit_ts, start_ts])
        for high in [*odd, len(lanes)]:
            if low < high:
                self._add_run(splits.build_run(low, high, groups), times, lanes)
            if high < len(lanes):
                self.add(lanes.read_row(high), int(commit_ts[high]), int(start_ts[high]), lookups[where[high]])
            low = high + 1

    def _group_by_table(self, splits: Splits, lookups: Sequence[TableLookup], where: Ints) -> tuple[Ints, list[int]]:
        """(group of each mutation without its kind, -1 where its table is left out; binlogs that must be added
        alone)."""
        ids, table_ids = _number_distinct(splits.table_id)
        groups = np.empty(len(splits.of), np.int64)
        for code, which in group_positions(where[splits.of] * len(ids) + table_ids):
            table = lookups[code // len(ids)].find_table(int(ids[code % len(ids)]))
            wanted = () if table is None else self._look_up_kinds(table)
            late = table is not None and is_late(table, int(splits.version[which].min()))
            if table is None or late or 0 < len(wanted) < len(ALL_KINDS):
                groups[which] = _ALONE
            else:
                groups[which] = self._tables.setdefault(table, len(self._tables)) * _KINDS if wanted else -1
        good = splits.good.copy()
        good[splits.of[groups == _ALONE]] = False
        return groups, np.flatnonzero(~good).tolist()

    def _add_run(self, run: MutationRun, times: Ints, lanes: Lanes) -> None:
        self._end_block()
        commit, start = times[:, run.of]
        number = run.group // _KINDS
        self._blocks.append(np.stack([commit, start, run.version, number, run.seq, run.size, run.table_id], axis=1))
        self._kinds.append(run.kinds)
        self._rows.add(lanes, run.rows)
        self.stats.table_rows += run.left_out
        self._count += len(run.kinds)
        of = run.of[np.diff(run.of, prepend=-1) != 0]
        self._bytes += int((lanes.ends[of] - lanes.starts[of]).sum())

    def _end_block(self) -> None:
        self._blocks.append(np.asarray(self._mutations, dtype=np.int64).reshape(-1, FIELDS))
        self._mutations = []

    def _add_rows(self, group: int, rows: RowLists) -> None:
        self._kinds.append(bytes(rows.kinds))
        self._count += len(rows.kinds)
        for kind, rows_of_kind in ((pb.Insert, rows.inserts), (pb.Update, rows.updates), (pb.DeleteRow, rows.deletes)):
            if rows_of_kind:
                self._rows.add_alone(group + kind, rows_of_kind)

    def take(self) -> pa.RecordBatch:
        """All rows so far as one record batch of MUTATION_SCHEMA; the batch is empty afterwards.

        Use it while `is_full` bounds the size: an Arrow text column ends at 2 GiB, so a huge transaction needs
        `take_batches`.
        """
        taken = list(self._take_batches(self._count, None))
        return taken[0] if taken else pa.RecordBatch.from_pylist([], MUTATION_SCHEMA)

    def take_batches(self, rows: int = 2 * BATCH_ROWS, size: int = 2 * BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """All rows so far in record batches of at most `rows` rows, and `size` bytes before decoding (or one row).

        The limits are twice those of `is_full`, so that the last transaction does not create a small extra batch.
        """
        return self._take_batches(rows, size)

    def _take_batches(self, most_rows: int, most_bytes: int | None) -> Iterator[pa.RecordBatch]:
        self._end_block()
        mutations = np.concatenate(self._blocks)
        kinds, tables = np.frombuffer(b"".join(self._kinds), np.uint8), list(self._tables)
        groups, count = self._build_groups(mutations, kinds, tables), self._count
        if most_bytes is not None and self._bytes <= most_bytes:
            most_bytes = None
        self._clear()
        ends = mutations[:, ROWS].cumsum()
        for low, high in compute_cuts(groups, count, most_rows, most_bytes):
            first, last = np.searchsorted(ends, [low, high - 1], side="right").tolist()
            part = mutations[first : last + 1].copy()
            part[0, FIRST] += low - (ends[first] - part[0, ROWS])
            part[:, ROWS] = np.diff(np.minimum(ends[first : last + 1], high), prepend=low)
            here = [cut(group, low, high) for group in groups]
            yield self._build_record_batch(part, kinds[low:high], tables, [group for group in here if len(group.rows)])

    def _build_groups(self, mutations: Ints, kinds: Bytes, tables: list[TableDef]) -> list[Waiting]:
        # A mutation's lists follow the order of its sequence, so the n-th row of a group has its n-th position.
        codes = np.repeat(mutations[:, TABLE], mutations[:, ROWS]) * _KINDS + kinds
        rows, groups = self._rows.build_rows(), []
        for code, which in group_positions(codes):
            places = np.arange(len(codes))[which]
            groups.append(Waiting(self._decoder_of(tables[code // _KINDS]), _OPS[code % _KINDS], rows[code], places))
        return groups

    def _build_record_batch(
        self, mutations: Ints, kinds: Bytes, tables: list[TableDef], groups: list[RowGroup]
    ) -> pa.RecordBatch:
        commit, start, version, table, first, size, _ = mutations.T
        count = len(kinds)
        seq = np.repeat(first - (size.cumsum() - size), size) + np.arange(count)
        columns = build_columns(groups, mutations)
        names = zip(*(cast(_Names4, self._look_up_names(one)) for one in tables), strict=True)
        numbers, versions = np.repeat(table, size), np.repeat(version, size)
        commit = np.repeat(commit, size)
        arrays: list[Any] = [
            pa.array(commit),
            pa.array(np.repeat(start, size)),
            pa.array(seq.astype(np.int32)),
            pa.array(((commit >> LOGICAL_BITS) // _MS_PER_DAY).astype(np.int32), pa.date32()),
            pa.array(versions),
            *(pa.array(column, pa.string()).take(pa.array(numbers)) for column in names),
            pa.array(np.asarray([one.id for one in tables])[numbers]),
            pa.array(_OPS, pa.string()).take(pa.array(kinds)),
            join_keys(columns.keys, count),
            join_keys(columns.new_keys, count),
            join_maps(columns.before, count),
            join_maps(columns.after, count),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=MUTATION_SCHEMA)
        batch, kept, self._last = without_echoes(batch, tables, numbers, self._last)
        late = numbers[kept], versions[kept]
        doubt = Doubt(self._partition_rows, self.stats.taken_away)
        return without_lost_rows(batch, tables, *late, self.stats.gone_rows, self._look_up_names, doubt)

    def _look_up_kinds(self, table: TableDef) -> Collection[str]:
        if table not in self._known:
            self._known[table] = () if self._look_up_names(table) is None else self._kinds_of(table)
        return self._known[table]

    def _look_up_names(self, table: TableDef) -> _Names4 | None:
        if table not in self._routed:
            target = self._route(table)
            self._routed[table] = None if target is None else (table.db, table.name, *target)
        return self._routed[table]


def _number_distinct(values: Ints) -> tuple[Ints, Ints]:
    """(distinct values, index of each value among them)."""
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), np.int64)
    different, which = np.unique(values, return_inverse=True)
    return different, which
