"""A transaction's payload to its row changes in order: mutations as listed, rows as `sequence` says (S0-19 to S0-21).

Whatever the bytes are, the outcome is rows or one WireError that names commit_ts, table_id and what is wrong.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from google.protobuf.message import DecodeError

from binlake.codec.plan import Image, TablePlan, plan_of
from binlake.errors import WireError
from binlake.schema.info import TableDef
from binlake.schema.window import unknown_table
from binlake.wire import binlog_pb2 as pb

Op = Literal["insert", "update", "delete"]
RawChange = tuple[int, TablePlan, Op, Image | None, Image | None]
"""seq, plan of the table, op, image before, image after: what `raw_changes` gives and batches keep."""


class TableLookup(Protocol):
    """Definitions at the place of a transaction; `SchemaState` is one."""

    def table(self, table_id: int) -> TableDef | None:
        """The definition of a table id, or None."""

    def is_gone(self, table_id: int) -> bool:
        """True when the id was dropped or truncated lately."""


@dataclass
class DecodeStats:
    """What decoding passed over: rows of tables that were dropped or truncated meanwhile, by table id."""

    gone_rows: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row change. `seq` from 0 within the transaction, counted over all its rows; `before` for update and delete,
    `after` for insert and update: column name to canonical text (None = NULL)."""

    seq: int
    table_id: int
    op: Op
    before: dict[str, str | None] | None
    after: dict[str, str | None] | None


def decode_transaction(
    payload: bytes, commit_ts: int, start_ts: int, tables: TableLookup, stats: DecodeStats | None = None
) -> Iterator[RowChange]:
    """The row changes of a complete C (or P) binlog `payload`, by the definitions `tables` of its place.

    Columns: public, not virtual generated (R-19). A late row of a dropped or truncated table is counted in `stats`
    and passed over (tidb-binlog 1.14). Raises WireError for damaged payloads, SchemaError for unknown table ids.
    """
    _, changes = raw_changes(payload, commit_ts, start_ts, tables, stats)
    for seq, plan, op, before, after in changes:
        yield RowChange(seq, plan.table.id, op, _mapping(before), _mapping(after))


def raw_changes(
    payload: bytes, commit_ts: int, start_ts: int, tables: TableLookup, stats: DecodeStats | None = None
) -> tuple[int, Iterator[RawChange]]:
    """(schema_version, row changes) with values in lists: the form without a dict per row, for batches."""
    try:
        value = pb.PrewriteValue.FromString(pb.Binlog.FromString(payload).prewrite_value)
    except DecodeError as error:
        raise WireError(
            "the payload of a transaction is no binlog", where={"commit_ts": commit_ts, "start_ts": start_ts}
        ) from error
    return value.schema_version, _changes(value, commit_ts, tables, stats or DecodeStats())


def _changes(value: pb.PrewriteValue, commit_ts: int, tables: TableLookup, stats: DecodeStats) -> Iterator[RawChange]:
    seq = 0
    for mutation in value.mutations:
        check_mutation(mutation, commit_ts)
        table = tables.table(mutation.table_id)
        if table is not None:
            yield from _walk(mutation, plan_of(table), seq, commit_ts)
        elif tables.is_gone(mutation.table_id):
            stats.gone_rows[mutation.table_id] += len(mutation.sequence)
        else:
            raise unknown_table(mutation.table_id, commit_ts)
        seq += len(mutation.sequence)


def check_mutation(mutation: pb.TableMutation, commit_ts: int) -> None:
    """Raise WireError when deprecated fields are used, or when `sequence` does not match the lists (S0-20, S0-21)."""
    for name in ("deleted_ids", "deleted_pks"):
        if count := len(getattr(mutation, name)):
            raise _error(f"the deprecated field {name} of TableMutation holds {count} entries", mutation, commit_ts)
    lengths = (len(mutation.inserted_rows), len(mutation.updated_rows), len(mutation.deleted_rows))
    kinds = list(mutation.sequence)
    counted = (kinds.count(pb.Insert), kinds.count(pb.Update), kinds.count(pb.DeleteRow))
    if counted != lengths or len(kinds) != sum(counted):
        raise _error(
            f"sequence names {counted[0]} inserts, {counted[1]} updates, {counted[2]} deletes in {len(kinds)} entries, "
            f"but the lists hold {lengths[0]}, {lengths[1]}, {lengths[2]}",
            mutation,
            commit_ts,
        )


def _walk(mutation: pb.TableMutation, plan: TablePlan, seq: int, commit_ts: int) -> Iterator[RawChange]:
    inserts, updates, deletes = iter(mutation.inserted_rows), iter(mutation.updated_rows), iter(mutation.deleted_rows)
    kind, op = -1, ""
    try:
        for kind in mutation.sequence:
            if kind == pb.Insert:
                op = "insert"
                yield seq, plan, "insert", None, plan.insert(next(inserts))
            elif kind == pb.Update:
                op = "update"
                before, after = plan.update(next(updates))
                yield seq, plan, "update", before, after
            else:
                op = "delete"
                yield seq, plan, "delete", plan.delete(next(deletes)), None
            seq += 1
    except (IndexError, ValueError, KeyError, OverflowError, struct.error) as error:
        what = "it is cut short" if isinstance(error, (IndexError, struct.error)) else str(error)
        raise _error(f"a row of kind {op} cannot be decoded: {what}", mutation, commit_ts, seq=seq) from error


def _mapping(image: Image | None) -> dict[str, str | None] | None:
    return None if image is None else dict(zip(*image, strict=True))


def _error(what: str, mutation: pb.TableMutation, commit_ts: int, **more: object) -> WireError:
    return WireError(what, where={"table_id": mutation.table_id, "commit_ts": commit_ts, **more})
