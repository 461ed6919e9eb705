"""Decode a transaction's payload to its row changes, in order: mutations as listed, rows as `sequence` says (S0-19 to
S0-21).

Any bytes give either rows or one WireError that names commit_ts, table_id and the problem.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from binlake.errors import WireError
from binlake.rows.codec.columnblocks import is_column_block, read_column_block
from binlake.rows.codec.tabledecoder import Image, TableDecoder, look_up_decoder
from binlake.rows.codec.values import NotText
from binlake.rows.schema.info import TableDef
from binlake.rows.schema.window import build_unknown_table_error
from binlake.wire import binlog_pb2 as pb

MAX_BYTES = (1 << 31) - 1
"""Most bytes of a binlog: protobuf's limit (S0-07)."""
ROW_ERRORS = (IndexError, ValueError, KeyError, OverflowError, struct.error)
"""The exceptions that reading a damaged row can raise."""

Op = Literal["insert", "update", "delete"]
RawChange = tuple[int, TableDecoder, Op, Image | None, Image | None]
"""seq, decoder of the table, op, image before, image after: a row change as `decode_raw_changes` returns it."""


class TableLookup(Protocol):
    """The table definitions that are valid for a transaction; `SchemaState` implements it."""

    def find_table(self, table_id: int) -> TableDef | None:
        """The definition of a table id, or None."""

    def is_gone(self, table_id: int) -> bool:
        """True if the table with this id was dropped or truncated recently."""


Wanted = Callable[[TableDef], Collection[str]]
"""The kinds of row changes of a table that are decoded; empty = the table is left out."""


@dataclass
class DecodeStats:
    """Counts rows that decoding skipped or treated specially.

    `gone_rows`: rows of tables that were dropped or truncated in the meantime, by table id. `table_rows`: rows of
    tables that a filter leaves out; `event_rows`: rows of kinds that a filter leaves out. By `db.table` of the source:
    `latin1_texts`: values read as latin1, in both images of an update; `taken_once`: transactions for which it is not
    certain which changes are second writes, so that each pair counted once; `taken_away`: transactions with rows of
    which it is not certain that they went with their partition.
    """

    gone_rows: Counter[int] = field(default_factory=Counter)
    table_rows: int = 0
    event_rows: int = 0
    latin1_texts: Counter[str] = field(default_factory=Counter)
    taken_once: Counter[str] = field(default_factory=Counter)
    taken_away: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row change.

    `seq` counts all rows of the transaction from 0. `before` (update, delete) and `after` (insert, update) map column
    names to canonical texts (None = NULL).
    """

    seq: int
    table_id: int
    op: Op
    before: dict[str, str | None] | None
    after: dict[str, str | None] | None


def decode_transaction(
    payload: bytes, commit_ts: int, start_ts: int, tables: TableLookup, stats: DecodeStats | None = None
) -> Iterator[RowChange]:
    """The row changes of a complete commit (or prewrite) binlog `payload`, by the definitions `tables` valid for it.

    Columns: public, not virtual generated (R-19). A late row of a dropped or truncated table is skipped and counted in
    `stats` (tidb-binlog 1.14). Raises WireError for damaged payloads, SchemaError for unknown table ids.
    """
    _, changes = decode_raw_changes(payload, commit_ts, start_ts, tables, stats)
    for seq, decoder, op, before, after in changes:
        yield RowChange(seq, decoder.table.id, op, _to_dict(before), _to_dict(after))


def select_every_kind(_table: TableDef) -> Collection[str]:
    """All row changes of all tables."""
    return ALL_KINDS


ALL_KINDS: frozenset[str] = frozenset(("insert", "update", "delete"))
"""The kinds of row changes."""


def decode_raw_changes(
    payload: bytes,
    commit_ts: int,
    start_ts: int,
    tables: TableLookup,
    stats: DecodeStats | None = None,
    wanted: Wanted = select_every_kind,
) -> tuple[int, Iterator[RawChange]]:
    """(schema_version, row changes), with values in lists instead of a dict per row.

    Rows that are not `wanted` are not decoded but counted in `stats`; `seq` counts them too.
    """
    value = split(payload, commit_ts, start_ts)
    counted = stats or DecodeStats()
    runs = (
        (seq + first, table_id, table, run)
        for seq, table_id, table, rows in read_mutations(value, commit_ts, tables, counted)
        for first, run in select_wanted_rows(rows, wanted(table), counted)
    )
    changes = (
        change
        for seq, table_id, table, rows in runs
        for change in decode_changes(rows, look_up_decoder(table), seq, table_id, commit_ts)
    )
    return value.schema_version, changes


def split(payload: bytes, commit_ts: int, start_ts: int) -> pb.PrewriteValue:
    """The mutations of a binlog; their rows stay undecoded. Raises WireError."""
    if len(payload) > MAX_BYTES:
        raise WireError(
            f"a binlog of {len(payload)} bytes is above the {MAX_BYTES} bytes that a protobuf message can have",
            where={"commit_ts": commit_ts, "start_ts": start_ts},
        )
    try:
        return pb.PrewriteValue.FromString(pb.Binlog.FromString(payload).prewrite_value)
    except DecodeError as error:
        raise WireError(
            "the payload of a transaction is not a binlog", where={"commit_ts": commit_ts, "start_ts": start_ts}
        ) from error


class RowLists(NamedTuple):
    """A mutation's `sequence` and its three lists."""

    kinds: Sequence[int]
    inserts: list[bytes]
    updates: list[bytes]
    deletes: list[bytes]


def read_mutations(
    value: pb.PrewriteValue, commit_ts: int, tables: TableLookup, stats: DecodeStats
) -> Iterator[tuple[int, int, TableDef, RowLists]]:
    """(seq of the first row, table id, definition, rows) of tables that still exist. Raises WireError, SchemaError."""
    seq = 0
    # A slice copies in C; iterating a repeated field ends with an exception, which costs as much as a row.
    for mutation in value.mutations[:]:
        rows, table_id = read_rows(mutation, commit_ts), mutation.table_id
        table = tables.find_table(table_id)
        if table is not None:
            yield seq, table_id, table, rows
        elif tables.is_gone(table_id):
            stats.gone_rows[table_id] += len(rows.kinds)
        else:
            raise build_unknown_table_error(table_id, commit_ts)
        seq += len(rows.kinds)


def select_wanted_rows(rows: RowLists, wanted: Collection[str], stats: DecodeStats) -> Iterator[tuple[int, RowLists]]:
    """The rows of wanted kinds, as runs of neighbours: (number of the run's first row, its rows). Others are
    counted."""
    if len(wanted) == len(ALL_KINDS):
        yield 0, rows
        return
    if not wanted:
        stats.table_rows += len(rows.kinds)
        return
    at, taken = 0, {pb.Insert: 0, pb.Update: 0, pb.DeleteRow: 0}
    lists = {pb.Insert: rows.inserts, pb.Update: rows.updates, pb.DeleteRow: rows.deletes}
    for passes, group in groupby(rows.kinds, key=lambda kind: _OP_OF[kind] in wanted):
        kinds = list(group)
        parts = {kind: own[taken[kind] : taken[kind] + kinds.count(kind)] for kind, own in lists.items()}
        for kind, part in parts.items():
            taken[kind] += len(part)
        if passes:
            yield at, RowLists(kinds, *parts.values())
        else:
            stats.event_rows += len(kinds)
        at += len(kinds)


_OP_OF: dict[int, str] = {pb.Insert: "insert", pb.Update: "update", pb.DeleteRow: "delete"}


def read_rows(mutation: pb.TableMutation, commit_ts: int) -> RowLists:
    """The rows of a mutation.

    Raises WireError when deprecated fields are used, or when `sequence` does not match the lists (S0-20, S0-21).
    """
    if mutation.deleted_ids or mutation.deleted_pks:
        raise _build_deprecated_error(mutation, commit_ts)
    kinds, inserts = mutation.sequence[:], mutation.inserted_rows[:]
    updates, deletes = mutation.updated_rows[:], mutation.deleted_rows[:]
    counted = kinds.count(pb.Insert), kinds.count(pb.Update), kinds.count(pb.DeleteRow)
    lengths = len(inserts), len(updates), len(deletes)
    if counted != lengths or len(kinds) != sum(counted):
        raise _build_error(
            f"sequence names {counted[0]} inserts, {counted[1]} updates, {counted[2]} deletes in {len(kinds)} entries, "
            f"but the lists hold {lengths[0]}, {lengths[1]}, {lengths[2]}",
            mutation,
            commit_ts,
        )
    return RowLists(kinds, inserts, updates, deletes)


def _build_deprecated_error(mutation: pb.TableMutation, commit_ts: int) -> WireError:
    name = "deleted_ids" if mutation.deleted_ids else "deleted_pks"
    count = len(getattr(mutation, name))
    return _build_error(f"the deprecated field {name} of TableMutation holds {count} entries", mutation, commit_ts)


def decode_changes(
    rows: RowLists, decoder: TableDecoder, seq: int, table_id: int, commit_ts: int
) -> Iterator[RawChange]:
    """The changes of a mutation's `rows` in order; `seq` is the number of the first. Raises WireError."""
    inserts, updates, deletes = iter(rows.inserts), iter(rows.updates), iter(rows.deletes)
    op = ""
    try:
        for kind in rows.kinds:
            if kind == pb.Insert:
                op = "insert"
                *others, last = _read_inserts(next(inserts), decoder)
                for image in others:
                    yield seq, decoder, "insert", None, image
                    seq += 1
                yield seq, decoder, "insert", None, last
            elif kind == pb.Update:
                op = "update"
                before, after = decoder.update(next(updates))
                yield seq, decoder, "update", before, after
            else:
                op = "delete"
                yield seq, decoder, "delete", decoder.delete(next(deletes)), None
            seq += 1
    except ROW_ERRORS as error:
        raise build_row_error(error, op, table_id, commit_ts, seq) from error


def _read_inserts(row: bytes, decoder: TableDecoder) -> Sequence[Image]:
    """The image of a row, or those of a block of rows. Raises ROW_ERRORS."""
    if not is_column_block(row):
        return (decoder.insert(row),)
    texts = [column.to_pylist() for column in read_column_block(row, decoder.table)]
    return [(decoder.names, list(values)) for values in zip(*texts, strict=True)]


def build_row_error(error: Exception, op: str, table_id: int, commit_ts: int, seq: int) -> WireError:
    """The WireError that reports a damaged row; `error` is one of ROW_ERRORS."""
    what = "it is cut short" if isinstance(error, (IndexError, struct.error)) else str(error)
    where = {"table_id": table_id, "commit_ts": commit_ts, "seq": seq}
    hint = error.hint if isinstance(error, NotText) else ""
    return WireError(f"a row of kind {op} cannot be decoded: {what}", where=where, hint=hint)


def _to_dict(image: Image | None) -> dict[str, str | None] | None:
    return None if image is None else dict(zip(*image, strict=True))


def _build_error(what: str, mutation: pb.TableMutation, commit_ts: int) -> WireError:
    return WireError(what, where={"table_id": mutation.table_id, "commit_ts": commit_ts})
