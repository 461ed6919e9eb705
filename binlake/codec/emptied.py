"""Rows that went with a dropped or truncated partition are taken out of a batch (`binlake.schema.emptied`).

A row that an update moved between such a partition and another is an insert or a delete of what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from binlake.codec.lanes import Ints
from binlake.errors import SchemaError
from binlake.schema.emptied import HINT, Side, partition_of
from binlake.schema.info import TableDef
from binlake.wire import binlog_pb2 as pb

Row = dict[str, Any]
_SIDES = ("before", "after")


def settled(
    table: TableDef, version: int, payload: bytes, alone: bool, known: dict[tuple[TableDef, Side], TableDef]
) -> TableDef:
    """`table` with what is known of the side that a transaction of schema `version` took; one of `known` if there is.

    `alone`: the transaction changes no other table.
    """
    emptied = table.emptied
    if emptied is None or version >= emptied.version:
        return table
    side = emptied.side_of(pb.Binlog.FromString(payload).prewrite_key, table.partition_ids, alone)
    if (table, side) not in known:
        known[table, side] = replace(table, emptied=None if side == "new" else replace(emptied, side=side))
    return known[table, side]


def without_lost_rows(
    batch: pa.RecordBatch, tables: Sequence[TableDef], which: Ints, versions: Ints, lost: Counter[int]
) -> pa.RecordBatch:
    """`batch` (of MUTATION_SCHEMA) without rows that went with their partition; `lost` counts them by table id.

    `which`: the number of each row's definition (of `settled`) among `tables`, `versions` its schema version. Raises
    SchemaError for a row of which it cannot be told.
    """
    bounds = np.asarray([table.emptied.version if table.emptied else 0 for table in tables], np.int64)
    late = versions < bounds[which]
    if not late.any():
        return batch
    found = batch.to_pylist(maps_as_pydicts="strict")
    own: dict[int, list[Row]] = {}
    for row in (row for row, is_late in zip(found, late, strict=True) if is_late):
        own.setdefault(row["commit_ts"], []).append(row)
    rows: list[Row] = []
    for row, is_late, number in zip(found, late, which, strict=True):
        left = list(_left(row, tables[number], own[row["commit_ts"]])) if is_late else [row]
        lost[row["table_id"]] += not left
        rows += left
    return pa.RecordBatch.from_pylist(rows, batch.schema)


def _left(row: Row, table: TableDef, together: Sequence[Row]) -> Iterator[Row]:
    """What is left of a late row of a transaction's `together`: itself, nothing, or that side of an update which lies
    in another partition."""
    held = [side for side in _SIDES if row[side] is not None and _holds(row, side, table)]
    if not held or not _wrote_there(row, held[0], table, together):
        yield row
    elif held == ["before"] and row["after"] is not None:
        yield {**row, "op": "insert", "before": None, "key": row["new_key"] or row["key"], "new_key": None}
    elif held == ["after"] and row["before"] is not None:
        yield {**row, "op": "delete", "after": None, "new_key": None}


def _wrote_there(row: Row, side: str, table: TableDef, together: Sequence[Row]) -> bool:
    """Whether the transaction wrote the image `side` of `row` into such a partition. Raises SchemaError."""
    known = table.emptied.side if table.emptied else "new"
    if known == "old" or not partition_of(table.raw["partition"], row[side], _types(table)):
        return True
    # The primary key is that of one of its rows: all of them would have been in the partition, and that one is not.
    if known == "not its own" and all(_holds(one, s, table) for one in together for s in _SIDES if one[s] is not None):
        return False
    raise SchemaError(
        "a row of a dropped or truncated partition was committed while the DDL ran, and it cannot be told whether it"
        " went with the partition",
        where={"table": f"{table.db}.{table.name}", "commit_ts": row["commit_ts"], "key": row["key"]},
        hint=HINT,
    )


def _types(table: TableDef) -> dict[str, int]:
    return {column.name: column.tp for column in table.row_columns}


def _holds(row: Row, side: str, table: TableDef) -> bool:
    assert table.emptied is not None
    where = {"table": f"{table.db}.{table.name}", "commit_ts": row["commit_ts"]}
    try:
        return table.emptied.holds(row[side], _types(table))
    except SchemaError as error:
        raise SchemaError(error.message, where={**where, **error.where}, hint=error.hint) from error
