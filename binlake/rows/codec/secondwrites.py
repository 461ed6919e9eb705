"""Second writes of row changes, which TiDB logs while partitions of a table without a key are rearranged.

Rule (`binlake.rows.schema.reorganized`; TiDB v7.5, `table/tables/partition.go`): behind each change of a row that lies
a rearranged partition holds what it did to the other set of partitions: the same insert, update or delete; an
insert and a delete for an update that moves the row there, and the other way round. Two equal changes may as well be
two rows. So the changes of a transaction are read at every step at which it may have written. What all the steps that
can have logged them agree on is taken; what they do not agree on is refused, or each pair taken once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from binlake.errors import SchemaError
from binlake.rows.codec.tabledecoder import Image, TableDecoder
from binlake.rows.codec.transaction import RowLists, changes_of
from binlake.rows.schema.emptied import physical_id
from binlake.rows.schema.info import TableDef
from binlake.rows.schema.reorganized import AFTER, BEFORE, COPYING, DELETE_ONLY, SWITCHED, Reorganized
from binlake.wire import binlog_pb2 as pb

SecondWrites: TypeAlias = Literal["refuse", "once"]
"""The handling of second writes that cannot be identified: stop, or each pair counts once."""

_HINT = (
    "the source itself may hold such rows twice now (pingcap/tidb#57510). Set source.second-writes = once, which counts"
    " each pair as one change, run merge again, and compare the table afterwards: `binlake verify --fix`"
)


class Change(NamedTuple):
    """A row change as logged; images are (names, values) and None where there is none."""

    op: str
    before: Image | None
    after: Image | None


class Moment(NamedTuple):
    """The schema `version` and the commit_ts of a transaction."""

    version: int
    commit_ts: int


@dataclass(frozen=True)
class _Read:
    """What a transaction is if it wrote at a certain step: which changes stay; `certain` False: not even so told."""

    kept: tuple[bool, ...]
    certain: bool


def may_be_twice(table: TableDef, version: int) -> bool:
    """True when transactions of schema `version` may have second writes in `table`, which has no key."""
    return table.reorganized is not None and version < table.reorganized.version


def without_second_writes(
    decoder: TableDecoder, rows: RowLists, payload: bytes, moment: Moment, policy: SecondWrites, counted: Counter[str]
) -> Iterator[tuple[int, RowLists]]:
    """(number of its first row, rows) of each run of neighbours among a mutation's `rows` that are not second writes.

    `rows`: of the table of `decoder`, one of `may_be_twice`, in the transaction `payload`. `counted` gets one more for
    its `db.table` where `policy` takes what is not certain. Raises SchemaError where it does not, WireError.
    """
    table = decoder.table
    changes = [Change(*change[2:]) for change in changes_of(rows, decoder, 0, table.id, moment.commit_ts)]
    read = _read(table, changes, moment, physical_id(pb.Binlog.FromString(payload).prewrite_key))
    if not read.certain:
        if policy == "refuse":
            raise _undecided(table, moment)
        counted[f"{table.db}.{table.name}"] += 1
    return _runs(rows, read.kept)


def _read(table: TableDef, changes: Sequence[Change], moment: Moment, written: int) -> _Read:
    """What a transaction with `changes` of `table` is; `written`: the table id of its primary key."""
    info, as_logged = table.reorganized, (True,) * len(changes)
    images = [tuple(image[1]) for change in changes for image in (change.before, change.after) if image is not None]
    if info is None or len(set(images)) == len(images):
        return _Read(as_logged, certain=True)
    types = {column.name: column.tp for column in table.row_columns}
    steps = info.steps(moment.version, moment.commit_ts, written)
    found = {step: read for step in steps if (read := _Reader(info, step, changes, moment, types).read()) is not None}
    told = set(found.values())
    if len(told) == 1 and all(read.certain for read in told):
        return told.pop()
    # The steps before the last are those at which most is logged twice.
    kept = next((found[step].kept for step in (SWITCHED, COPYING, DELETE_ONLY) if step in found), as_logged)
    return _Read(kept, certain=False)


def _runs(rows: RowLists, kept: Sequence[bool]) -> Iterator[tuple[int, RowLists]]:
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
    """Reads a transaction's changes as TiDB logs them at one step of the DDL."""

    def __init__(
        self, info: Reorganized, step: int, changes: Sequence[Change], moment: Moment, types: Mapping[str, int]
    ) -> None:
        self._info, self._step, self._changes, self._types = info, step, changes, types
        self._is_copied = info.known and moment.commit_ts < info.copied_ts
        self._kept: list[bool] = []
        self._is_certain = True

    def read(self) -> _Read | None:
        """What the changes are; None if TiDB logs none like these at this step."""
        while len(self._kept) < len(self._changes):
            at = len(self._kept)
            first = 2 if self._is_moved(at) else 1
            seconds = self._second_writes(self._changes[at : at + first])
            rest = tuple(self._changes[at + first : at + first + 2])
            second = next((one for one in seconds if rest[: len(one)] == one), None)
            if second is None:
                return None if self._is_certain else _Read((True,) * len(self._changes), certain=False)
            self._kept += [True] * first + [self._stays(change, first) for change in second]
        return _Read(tuple(self._kept), self._is_certain)

    def _is_moved(self, at: int) -> bool:
        """Whether an insert and a delete are one update that moves a row from another partition, into a rearranged."""
        pair = self._changes[at : at + 2]
        if [change.op for change in pair] != ["insert", "delete"]:
            return False
        (into, is_into), (out_of, _) = self._place(pair[0].after), self._place(pair[1].before)
        return is_into and (into != out_of or into == 0)

    def _second_writes(self, first: Sequence[Change]) -> list[tuple[Change, ...]]:
        """The changes that may follow `first`; empty if TiDB does not log it."""
        change = first[0]
        if change.op == "insert":
            return self._of_insert(first)
        partition, is_rearranged = self._place(change.before)
        if change.op == "delete":
            return [(change,)] if is_rearranged else [()]
        if partition != self._place(change.after)[0]:
            return []
        if not is_rearranged:
            return [()]
        removed = Change("delete", change.before, None)
        if self._step == DELETE_ONLY:
            return [(removed,)]
        return [(change,), (Change("insert", None, change.after), removed)]

    def _of_insert(self, first: Sequence[Change]) -> list[tuple[Change, ...]]:
        inserted = first[0]
        if not self._place(inserted.after)[1]:
            return [()]
        added = () if self._step == DELETE_ONLY else (inserted,)
        if len(first) == 1:
            return [added]
        removed = first[1]
        if not self._place(removed.before)[1]:
            return [added]
        return [(*added, removed), (Change("update", removed.before, inserted.after),)]

    def _stays(self, second: Change, first: int) -> bool:
        """Whether a second write is a row of its own: an insert is, beside the copy of the row."""
        if self._step == SWITCHED or second.op == "delete":
            return False
        if second.op == "insert":
            self._is_certain &= self._is_copied
            return self._is_copied
        # An update behind a row that was moved makes a row of its own too, which no logged change shows.
        self._is_certain &= first == 1
        return False

    def _place(self, image: Image | None) -> tuple[int, bool]:
        assert image is not None
        if self._step in (BEFORE, AFTER):
            return 0, False
        partition, is_rearranged = self._info.place(self._step, dict(zip(*image, strict=True)), self._types)
        self._is_certain &= is_rearranged is not None
        return partition, is_rearranged is not False


def _undecided(table: TableDef, moment: Moment) -> SchemaError:
    return SchemaError(
        "equal changes of a table without a key were committed while its partitions were rearranged, and it cannot be"
        " determined which of them TiDB logged twice",
        where={"table": f"{table.db}.{table.name}", "commit_ts": moment.commit_ts},
        hint=_HINT,
    )
