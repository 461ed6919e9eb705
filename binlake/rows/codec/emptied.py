"""Remove from a batch the rows that a dropped or truncated partition took with it (`binlake.rows.schema.partitions`).

Rows of an exchanged partition become rows of the table that the partition is now. If an update moved a row between such
a partition and another one, it becomes a delete on one side and an insert on the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from binlake.common.lakecolumns import Mutation
from binlake.errors import SchemaError
from binlake.rows.codec.lanes import Ints
from binlake.rows.codec.transaction import TableLookup
from binlake.rows.schema.info import TableDef
from binlake.rows.schema.partitions import HINT, Side, decode_physical_id, find_partition
from binlake.wire import binlog_pb2 as pb

Row = dict[str, Any]
PartitionRows: TypeAlias = Literal["refuse", "removed"]
"""How to handle rows of which it is not known whether they went with their partition: stop, or as if they did."""


class Doubt:
    """Decides about such rows by `policy`; counts their transactions in `counted`, by the source's `db.table`."""

    def __init__(self, policy: PartitionRows, counted: Counter[str]) -> None:
        self._policy, self._counted = policy, counted
        self._seen: set[tuple[str, int]] = set()

    def require_accepted(self, table: TableDef, commit_ts: int, error: SchemaError) -> None:
        """Count the transaction; raises `error` if the policy is to stop."""
        if self._policy == "refuse":
            raise error
        place = (f"{table.db}.{table.name}", commit_ts)
        self._counted[place[0]] += place not in self._seen
        self._seen.add(place)


Known = dict[tuple[TableDef, Side, int, TableDef | None], TableDef]
"""The earlier results of `derive_side_definition`."""
_Names = tuple[str, str, str, str]
_SIDES = (Mutation.BEFORE, Mutation.AFTER)
_NAMES = (Mutation.SOURCE_DB, Mutation.SOURCE_TABLE, Mutation.DB, Mutation.TABLE)


def derive_side_definition(
    table: TableDef, table_id: int, value: pb.PrewriteValue, payload: bytes, tables: TableLookup, known: Known
) -> TableDef:
    """`table` with the side of the DDL on which the transaction `value` of `payload` wrote.

    `table_id`: the id under which the rows are logged; `tables`: the definitions at their position; `known`: cache of
    earlier results.
    """
    emptied = table.emptied
    if emptied is None or value.schema_version >= emptied.version:
        return table
    others = {mutation.table_id for mutation in value.mutations} - {table_id}
    # A row logged under another id, the former id of the table that was exchanged in, was written to that table.
    side: Side = "new"
    written = 0
    if table_id == table.id:
        key = pb.Binlog.FromString(payload).prewrite_key
        side = emptied.find_side(key, table.partition_ids, others)
        written = decode_physical_id(key) if side == "not its own" else 0
    taker = tables.find_table(emptied.heir) if emptied.heir else None
    if (table, side, written, taker) not in known:
        left = None if side == "new" else replace(emptied, side=side, written=written)
        known[table, side, written, taker] = replace(table, emptied=left, taker=taker if left else None)
    return known[table, side, written, taker]


def is_late(table: TableDef, version: int) -> bool:
    """True if a transaction of schema `version` may have seen `table` as it was before its last DDL."""
    left = [known.version for known in (table.emptied, table.reorganized) if known is not None]
    return any(version < bound for bound in left)


def without_lost_rows(
    batch: pa.RecordBatch,
    tables: Sequence[TableDef],
    which: Ints,
    versions: Ints,
    lost: Counter[int],
    names_of: Callable[[TableDef], _Names | None],
    doubt: Doubt,
) -> pa.RecordBatch:
    """`batch` (of MUTATION_SCHEMA) without rows that were removed with their partition; `lost` counts them by table id.

    `which`: the index of each row's definition (from `derive_side_definition`) in `tables`; `versions`: its schema
    version; `names_of`: the names of a table at the source and at the target; `doubt`: decides about a row of which it
    cannot be determined whether it was removed, or raises SchemaError.
    """
    bounds = np.asarray([table.emptied.version if table.emptied else 0 for table in tables], np.int64)
    late = versions < bounds[which]
    if not late.any():
        return batch
    all_rows = batch.to_pylist(maps_as_pydicts="strict")
    late_rows: dict[int, list[Row]] = {}
    for row in (row for row, is_late in zip(all_rows, late, strict=True) if is_late):
        late_rows.setdefault(row[Mutation.COMMIT_TS], []).append(row)
    rows: list[Row] = []
    for row, is_late, number in zip(all_rows, late, which, strict=True):
        left = (
            list(_find_remaining_rows(row, tables[number], late_rows[row[Mutation.COMMIT_TS]], names_of, doubt))
            if is_late
            else [row]
        )
        lost[row[Mutation.TABLE_ID]] += not left
        rows += left
    return pa.RecordBatch.from_pylist(rows, batch.schema)


def _find_remaining_rows(
    row: Row,
    table: TableDef,
    together: Sequence[Row],
    names_of: Callable[[TableDef], _Names | None],
    doubt: Doubt,
) -> Iterator[Row]:
    """What remains of a late `row`: the row itself, nothing, or the side of an update that lies in another partition.

    A row of an exchanged partition becomes a row of its new table. `together`: all late rows of the transaction.
    """
    affected: list[str] = []
    try:
        affected = [side for side in _SIDES if row[side] is not None and _holds(row, side, table)]
        goes = bool(affected) and _wrote_into_partition(row, affected[0], table, together)
    except SchemaError as error:
        doubt.require_accepted(table, row[Mutation.COMMIT_TS], error)
        # If the partitioning is not evaluated, nothing shows that the row was in the partition at all.
        goes = bool(affected)
    if not goes:
        yield row
        return
    taken = _find_names_after_exchange(row, table, names_of)
    if row[Mutation.OP] != "update" or len(affected) == len(_SIDES):
        yield from [{**row, **taken}] if taken else []
        return
    removed = {**row, Mutation.OP: "delete", Mutation.AFTER: None, Mutation.NEW_KEY: None}
    added = {
        **row,
        Mutation.OP: "insert",
        Mutation.BEFORE: None,
        Mutation.KEY: row[Mutation.NEW_KEY] or row[Mutation.KEY],
        Mutation.NEW_KEY: None,
    }
    in_partition, elsewhere = (removed, added) if affected == ["before"] else (added, removed)
    yield elsewhere
    yield from [{**in_partition, **taken}] if taken else []


def _find_names_after_exchange(
    row: Row, table: TableDef, names_of: Callable[[TableDef], _Names | None]
) -> Mapping[str, Any]:
    """The table names of `row` after its partition was exchanged for another table; empty if the row was removed.

    Raises SchemaError if that table has other columns or another key.
    """
    taker = table.taker
    if taker is None:
        return {}
    names, alike = names_of(taker), taker.find_identity() == table.find_identity()
    if names is None or not alike or list(_list_types(taker)) != list(_list_types(table)):
        raise _cannot_follow_error(table, taker, row[Mutation.COMMIT_TS], "which has other columns or another key")
    return {**dict(zip(_NAMES, names, strict=True)), Mutation.TABLE_ID: taker.id}


def require_equal_filters(table: TableDef, commit_ts: int, wanted: Callable[[TableDef], Collection[str]]) -> None:
    """Raises SchemaError if `table` and the table that its late rows may belong to have different filters.

    `table`: a result of `derive_side_definition`; `wanted`: the kinds of row changes that are read of a table.
    """
    taker = table.taker
    if taker is not None and set(wanted(table)) != set(wanted(taker)):
        raise _cannot_follow_error(table, taker, commit_ts, "which has other filters")


def _cannot_follow_error(table: TableDef, taker: TableDef, commit_ts: int, why: str) -> SchemaError:
    return SchemaError(
        f"rows were committed while their partition was exchanged for another table, {why}",
        where={"table": f"{table.db}.{table.name}", "other": f"{taker.db}.{taker.name}", "commit_ts": commit_ts},
        hint=HINT,
    )


def _wrote_into_partition(row: Row, side: str, table: TableDef, together: Sequence[Row]) -> bool:
    """Whether the transaction wrote the image `side` of `row` into a removed partition. Raises SchemaError."""
    emptied, partition, types = table.emptied, table.raw["partition"], _list_types(table)
    if emptied is None or emptied.side == "old" or not find_partition(partition, row[side], types):
        return emptied is not None
    # The prewrite key belongs to one of the transaction's rows, and names its partition. A transaction uses a table in
    # one state, so if only one of the two has a row in that partition, it is that one.
    if emptied.side == "not its own":
        own = [one for one in together if one[Mutation.TABLE_ID] == row[Mutation.TABLE_ID]]
        images = [one[s] for one in own for s in _SIDES if one[s] is not None]
        old, new = (
            any(find_partition(state, image, types) == emptied.written for image in images)
            for state in (emptied.partition, partition)
        )
        if old != new:
            return old
    raise SchemaError(
        "a row of a dropped, truncated or exchanged partition was committed while the DDL ran, and it cannot be "
        "determined whether it was removed with the partition",
        where={"table": f"{table.db}.{table.name}", "commit_ts": row[Mutation.COMMIT_TS], "key": row[Mutation.KEY]},
        hint=HINT,
    )


def _list_types(table: TableDef) -> dict[str, int]:
    return {column.name: column.tp for column in table.row_columns}


def _holds(row: Row, side: str, table: TableDef) -> bool:
    assert table.emptied is not None
    where = {"table": f"{table.db}.{table.name}", "commit_ts": row[Mutation.COMMIT_TS]}
    try:
        return table.emptied.holds(row[side], _list_types(table))
    except SchemaError as error:
        raise SchemaError(error.message, where={**where, **error.where}, hint=error.hint) from error
