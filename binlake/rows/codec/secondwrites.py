"""Remove the second writes of row changes, which TiDB logs while it rearranges the partitions of a table.

Without a key (`binlake.rows.schema.partitions`; TiDB v7.5, `table/tables/partition.go`): after each change of a row in
a rearranged partition, TiDB logs what it did to the other set of partitions: the same insert, update or delete, or an
insert and a delete if an update moves the row there, and vice versa. But two equal changes may also be two rows.
Therefore the changes of a transaction are interpreted at every step of the DDL at which it may have written. If all
steps that can have logged these changes agree, their result is taken. Otherwise the changes are refused, or each pair
counts as one change.

With a key (capture `zones`, table `Teile`): both writes are next to each other in the binlog, for the logical table:
the same insert, update or delete twice; in the delete-only step an update, followed by a delete of the row's former
image. Such a pair cannot be the history of one key: the row that the second write changes does not exist or has other
values. PARTITION BY takes the same steps on a table that has no partitions before, so every table with a key is checked
for such impossible pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.lakecolumns import Mutation
from binlake.errors import SchemaError
from binlake.rows.codec.lanes import Ints
from binlake.rows.codec.tabledecoder import Image, TableDecoder
from binlake.rows.codec.transaction import RowLists, decode_changes
from binlake.rows.schema.info import TableDef
from binlake.rows.schema.partitions import (
    AFTER,
    BEFORE,
    COPYING,
    DELETE_ONLY,
    SWITCHED,
    Reorganized,
    decode_physical_id,
)
from binlake.wire import binlog_pb2 as pb

SecondWrites: TypeAlias = Literal["refuse", "once"]
"""How to handle second writes that cannot be identified: stop, or count each pair once."""

_HINT = (
    "the source itself may now contain such rows twice (pingcap/tidb#57510). Set source.second-writes = once, which"
    " counts each pair as one change, run merge again, and compare the table afterwards: `binlake verify --fix`"
)
_NAMES = (Mutation.OP, Mutation.BEFORE, Mutation.AFTER)


class LoggedChange(NamedTuple):
    """A row change as logged; an image is (names, values), or None if the change has no such image."""

    op: str
    before: Image | None
    after: Image | None


class SchemaMoment(NamedTuple):
    """The schema `version` and the commit_ts of a transaction."""

    version: int
    commit_ts: int


@dataclass(frozen=True)
class _Read:
    """A transaction as interpreted at one step: `kept` says which changes stay; `certain` False: still ambiguous."""

    kept: tuple[bool, ...]
    certain: bool


def may_be_twice(table: TableDef, version: int) -> bool:
    """True if a transaction of schema `version` may have second writes in `table`, which has no key."""
    return table.reorganized is not None and version < table.reorganized.version


def without_second_writes(
    decoder: TableDecoder,
    rows: RowLists,
    payload: bytes,
    moment: SchemaMoment,
    policy: SecondWrites,
    counted: Counter[str],
) -> Iterator[tuple[int, RowLists]]:
    """A mutation's `rows` without second writes, as runs of neighbours: (number of the run's first row, its rows).

    `rows` belong to the table of `decoder`, for which `may_be_twice` holds, in the transaction `payload`. If the result
    is not certain, `policy` "once" counts the transaction in `counted` under its `db.table`, and "refuse" raises
    SchemaError. Raises WireError for a damaged row.
    """
    table = decoder.table
    changes = [LoggedChange(*change[2:]) for change in decode_changes(rows, decoder, 0, table.id, moment.commit_ts)]
    read = _read(table, changes, moment, decode_physical_id(pb.Binlog.FromString(payload).prewrite_key))
    if not read.certain:
        if policy == "refuse":
            raise _build_undecided_error(table, moment)
        counted[f"{table.db}.{table.name}"] += 1
    return _split_runs(rows, read.kept)


def _read(table: TableDef, changes: Sequence[LoggedChange], moment: SchemaMoment, written: int) -> _Read:
    """Interpret a transaction with `changes` of `table`; `written`: the table id in its prewrite key."""
    info, as_logged = table.reorganized, (True,) * len(changes)
    images = [tuple(image[1]) for change in changes for image in (change.before, change.after) if image is not None]
    if info is None or len(set(images)) == len(images):
        return _Read(as_logged, certain=True)
    types = {column.name: column.tp for column in table.row_columns}
    steps = info.find_steps(moment.version, moment.commit_ts, written)
    readings = {
        step: read for step in steps if (read := _Reader(info, step, changes, moment, types).read()) is not None
    }
    different = set(readings.values())
    if len(different) == 1 and all(read.certain for read in different):
        return different.pop()
    # The earlier a step is in this list, the more changes TiDB logs twice at it.
    kept = next((readings[step].kept for step in (SWITCHED, COPYING, DELETE_ONLY) if step in readings), as_logged)
    return _Read(kept, certain=False)


def _split_runs(rows: RowLists, kept: Sequence[bool]) -> Iterator[tuple[int, RowLists]]:
    at, taken = 0, {pb.Insert: 0, pb.Update: 0, pb.DeleteRow: 0}
    lists = {pb.Insert: rows.inserts, pb.Update: rows.updates, pb.DeleteRow: rows.deletes}
    while at < len(kept):
        end = at + 1
        while end < len(kept) and kept[end] == kept[at]:
            end += 1
        kinds = list(rows.kinds[at:end])
        parts = {kind: own[taken[kind] : taken[kind] + kinds.count(kind)] for kind, own in lists.items()}
        for kind, part in parts.items():
            taken[kind] += len(part)
        if kept[at]:
            yield at, RowLists(kinds, *parts.values())
        at = end


class _Reader:
    """Interprets a transaction's changes under the assumption that TiDB logged them at one step of the DDL."""

    def __init__(
        self,
        info: Reorganized,
        step: int,
        changes: Sequence[LoggedChange],
        moment: SchemaMoment,
        types: Mapping[str, int],
    ) -> None:
        self._info, self._step, self._changes, self._types = info, step, changes, types
        self._is_copied = info.known and moment.commit_ts < info.copied_ts
        self._kept: list[bool] = []
        self._is_certain = True

    def read(self) -> _Read | None:
        """Interpret the changes; None if TiDB cannot log them at this step."""
        while len(self._kept) < len(self._changes):
            at = len(self._kept)
            first = 2 if self._is_moved(at) else 1
            seconds = self._list_second_writes(self._changes[at : at + first])
            rest = tuple(self._changes[at + first : at + first + 2])
            second = next((one for one in seconds if rest[: len(one)] == one), None)
            if second is None:
                return None if self._is_certain else _Read((True,) * len(self._changes), certain=False)
            self._kept += [True] * first + [self._stays(change, first) for change in second]
        return _Read(tuple(self._kept), self._is_certain)

    def _is_moved(self, at: int) -> bool:
        """Whether an insert and a delete are one update that moves a row into a rearranged partition."""
        pair = self._changes[at : at + 2]
        if [change.op for change in pair] != ["insert", "delete"]:
            return False
        (into, is_into), (out_of, _) = self._find_partition(pair[0].after), self._find_partition(pair[1].before)
        return is_into and (into != out_of or into == 0)

    def _list_second_writes(self, first: Sequence[LoggedChange]) -> list[tuple[LoggedChange, ...]]:
        """The possible second writes after `first`; empty if TiDB does not log such changes at this step."""
        change = first[0]
        if change.op == "insert":
            return self._list_second_writes_of_insert(first)
        partition, is_rearranged = self._find_partition(change.before)
        if change.op == "delete":
            return [(change,)] if is_rearranged else [()]
        if partition != self._find_partition(change.after)[0]:
            return []
        if not is_rearranged:
            return [()]
        removed = LoggedChange("delete", change.before, None)
        if self._step == DELETE_ONLY:
            return [(removed,)]
        return [(change,), (LoggedChange("insert", None, change.after), removed)]

    def _list_second_writes_of_insert(self, first: Sequence[LoggedChange]) -> list[tuple[LoggedChange, ...]]:
        inserted = first[0]
        if not self._find_partition(inserted.after)[1]:
            return [()]
        added = () if self._step == DELETE_ONLY else (inserted,)
        if len(first) == 1:
            return [added]
        removed = first[1]
        if not self._find_partition(removed.before)[1]:
            return [added]
        return [(*added, removed), (LoggedChange("update", removed.before, inserted.after),)]

    def _stays(self, second: LoggedChange, first: int) -> bool:
        """Whether a second write created a separate row: an insert does if the row was copied before."""
        if self._step == SWITCHED or second.op == "delete":
            return False
        if second.op == "insert":
            self._is_certain &= self._is_copied
            return self._is_copied
        # An update after a moved row creates a separate row too, but no logged change shows it.
        self._is_certain &= first == 1
        return False

    def _find_partition(self, image: Image | None) -> tuple[int, bool]:
        assert image is not None
        if self._step in (BEFORE, AFTER):
            return 0, False
        partition, is_rearranged = self._info.find_place(self._step, dict(zip(*image, strict=True)), self._types)
        self._is_certain &= is_rearranged is not None
        return partition, is_rearranged is not False


def _build_undecided_error(table: TableDef, moment: SchemaMoment) -> SchemaError:
    return SchemaError(
        "equal changes of a table without a key were committed while its partitions were rearranged, and it cannot be"
        " determined which of them TiDB logged twice",
        where={"table": f"{table.db}.{table.name}", "commit_ts": moment.commit_ts},
        hint=_HINT,
    )


class LastWrite(NamedTuple):
    """The last row of a batch, as its neighbour in the next one sees it: `written` is what that one may repeat."""

    table: TableDef
    commit_ts: int
    seq: int
    key: str
    op: str
    written: tuple[object, ...]


def without_echoes(
    batch: pa.RecordBatch, tables: Sequence[TableDef], which: Ints, before: LastWrite | None = None
) -> tuple[pa.RecordBatch, Ints, LastWrite | None]:
    """Returns (`batch` of MUTATION_SCHEMA without second writes, the numbers of the remaining rows, its last row).

    `which`: the index of each row's definition in `tables`; `before`: the last row of the batch before it.
    """
    all_rows = np.arange(batch.num_rows)
    keyed = np.asarray([one.find_identity().kind != "row" for one in tables], np.bool_)
    if not batch.num_rows or not keyed[which].any():
        return batch, all_rows, None
    numbers = _list_repeated(batch, keyed[which[1:]] & (which[1:] == which[:-1]))
    if before is not None and _may_repeat(before, batch, tables[which[0]]):
        numbers.insert(0, 0)
    kept = np.ones(batch.num_rows, np.bool_)
    written = before.written if before is not None else ()
    for number in numbers:
        # A run of several second writes repeats the last write that was kept.
        written = _read_write(batch, number - 1) if number and kept[number - 1] else written
        kept[number] = not _repeats(written, _read_write(batch, number))
    last = None
    if keyed[which[-1]]:
        last = _read_last(batch, tables[which[-1]], _read_write(batch, -1) if kept[-1] else written)
    rows = all_rows[kept]
    return (batch if kept.all() else batch.take(pa.array(rows))), rows, last


def _list_repeated(batch: pa.RecordBatch, near: npt.NDArray[np.bool_]) -> list[int]:
    """Numbers of the rows that may be second writes of the row before; `near`: whether each one's table is the same."""
    count = batch.num_rows - 1
    # Two rows are not neighbours if a filter removed rows between them, so their seq must differ by 1.
    near = near & (np.diff(batch[Mutation.SEQ].to_numpy()) == 1)
    for name in (Mutation.COMMIT_TS, Mutation.KEY):
        near &= pc.equal(batch[name].slice(1), batch[name].slice(0, count)).to_numpy(zero_copy_only=False)
    ops = batch[Mutation.OP]
    alike = pc.equal(ops.slice(1), ops.slice(0, count)).to_numpy(zero_copy_only=False)
    near &= alike | pc.equal(ops.slice(1), "delete").to_numpy(zero_copy_only=False)
    found: list[int] = (np.flatnonzero(near) + 1).tolist()
    return found


def _may_repeat(before: LastWrite, batch: pa.RecordBatch, table: TableDef) -> bool:
    """Whether the first row of `batch` may be a second write of the row `before` it."""
    first = _read_last(batch.slice(0, 1), table, ())
    follows = before._replace(seq=before.seq + 1, op=first.op, written=()) == first
    return follows and first.op in (before.op, "delete")


def _read_last(batch: pa.RecordBatch, table: TableDef, written: tuple[object, ...]) -> LastWrite:
    names = (Mutation.COMMIT_TS, Mutation.SEQ, Mutation.KEY, Mutation.OP)
    commit_ts, seq, key, op = (batch[name][-1].as_py() for name in names)
    return LastWrite(table, commit_ts, seq, key, op, written)


def _read_write(batch: pa.RecordBatch, number: int) -> tuple[object, ...]:
    return tuple(batch[name][number].as_py() for name in _NAMES)


def _repeats(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    op, before, after = first
    return second == first or (op == "update" and before != after and second == ("delete", before, None))
