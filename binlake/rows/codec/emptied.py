"""Rows that went with a dropped or truncated partition are removed from a batch (`binlake.rows.schema.emptied`).

Those that went with an exchanged one become rows of the table that it is now. A row that an update moved between such a
partition and another is an insert or a delete on either side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from binlake.base.lakecolumns import Mutation
from binlake.errors import SchemaError
from binlake.rows.codec.lanes import Ints
from binlake.rows.codec.transaction import TableLookup
from binlake.rows.schema.emptied import HINT, Side, partition_of
from binlake.rows.schema.info import TableDef
from binlake.wire import binlog_pb2 as pb

Row = dict[str, Any]
Known = dict[tuple[TableDef, Side, TableDef | None], TableDef]
"""What `settled` gave before."""
_Names = tuple[str, str, str, str]
_SIDES = (Mutation.BEFORE, Mutation.AFTER)
_NAMES = (Mutation.SOURCE_DB, Mutation.SOURCE_TABLE, Mutation.DB, Mutation.TABLE)


def definition_of_side(
    table: TableDef, table_id: int, value: pb.PrewriteValue, payload: bytes, tables: TableLookup, known: Known
) -> TableDef:
    """`table` with what is known of the side that the transaction `value` of `payload` took; of `known` if it is there.

    `table_id`: the id that the rows are logged with; `tables`: the definitions of their place.
    """
    emptied = table.emptied
    if emptied is None or value.schema_version >= emptied.version:
        return table
    others = {mutation.table_id for mutation in value.mutations} - {table_id}
    # A row that is logged with the former id of the table that came in was written there.
    side: Side = "new"
    if table_id == table.id:
        side = emptied.side_of(pb.Binlog.FromString(payload).prewrite_key, table.partition_ids, others)
    taker = tables.table(emptied.heir) if emptied.heir else None
    if (table, side, taker) not in known:
        left = None if side == "new" else replace(emptied, side=side)
        known[table, side, taker] = replace(table, emptied=left, taker=taker if left else None)
    return known[table, side, taker]


def is_late(table: TableDef, version: int) -> bool:
    """True when transactions from schema `version` on may have seen `table` as it was before its last DDL."""
    left = [known.version for known in (table.emptied, table.reorganized) if known is not None]
    return any(version < bound for bound in left)


def without_lost_rows(
    batch: pa.RecordBatch,
    tables: Sequence[TableDef],
    which: Ints,
    versions: Ints,
    lost: Counter[int],
    names_of: Callable[[TableDef], _Names | None],
) -> pa.RecordBatch:
    """`batch` (of MUTATION_SCHEMA) without rows that went with their partition; `lost` counts them by table id.

    `which`: the number of each row's definition (of `settled`) among `tables`, `versions` its schema version;
    `names_of`: the names of a table at the source and at the target. Raises SchemaError for a row of which it cannot
    be determined.
    """
    bounds = np.asarray([table.emptied.version if table.emptied else 0 for table in tables], np.int64)
    late = versions < bounds[which]
    if not late.any():
        return batch
    found = batch.to_pylist(maps_as_pydicts="strict")
    own: dict[int, list[Row]] = {}
    for row in (row for row, is_late in zip(found, late, strict=True) if is_late):
        own.setdefault(row[Mutation.COMMIT_TS], []).append(row)
    rows: list[Row] = []
    for row, is_late, number in zip(found, late, which, strict=True):
        left = list(_what_remains(row, tables[number], own[row[Mutation.COMMIT_TS]], names_of)) if is_late else [row]
        lost[row[Mutation.TABLE_ID]] += not left
        rows += left
    return pa.RecordBatch.from_pylist(rows, batch.schema)


def _what_remains(
    row: Row, table: TableDef, together: Sequence[Row], names_of: Callable[[TableDef], _Names | None]
) -> Iterator[Row]:
    """What is left of a late row of a transaction's `together`: itself, nothing, or that side of an update which lies
    in another partition. What an exchanged partition held is a row of its new table."""
    held = [side for side in _SIDES if row[side] is not None and _holds(row, side, table)]
    if not held or not _wrote_into_partition(row, held[0], table, together):
        yield row
        return
    taken = _names_after_exchange(row, table, names_of)
    if row[Mutation.OP] != "update" or len(held) == len(_SIDES):
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
    there, here = (removed, added) if held == ["before"] else (added, removed)
    yield here
    yield from [{**there, **taken}] if taken else []


def _names_after_exchange(
    row: Row, table: TableDef, names_of: Callable[[TableDef], _Names | None]
) -> Mapping[str, Any]:
    """The names that `row` has in the table that its partition was exchanged for; empty where it is gone.

    Raises SchemaError where that table has other columns or another key.
    """
    taker = table.taker
    if taker is None:
        return {}
    names, alike = names_of(taker), taker.identity() == table.identity()
    if names is None or not alike or list(_types(taker)) != list(_types(table)):
        raise _cannot_follow_error(table, taker, row[Mutation.COMMIT_TS], "which has other columns or another key")
    return {**dict(zip(_NAMES, names, strict=True)), Mutation.TABLE_ID: taker.id}


def require_equal_filters(table: TableDef, commit_ts: int, wanted: Callable[[TableDef], Collection[str]]) -> None:
    """Raises SchemaError if filters distinguish a `table` of `settled` from the one that its late rows may belong to.

    `wanted`: the kinds of row changes that are read of a table.
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
    """Whether the transaction wrote the image `side` of `row` into such a partition. Raises SchemaError."""
    known = table.emptied.side if table.emptied else "new"
    if known == "old" or not partition_of(table.raw["partition"], row[side], _types(table)):
        return True
    # The primary key is that of one of its rows: all of them would have been in the partition, and that one is not.
    if known == "not its own" and all(_holds(one, s, table) for one in together for s in _SIDES if one[s] is not None):
        return False
    raise SchemaError(
        "a row of a dropped, truncated or exchanged partition was committed while the DDL ran, and it cannot be "
        "determined whether it was removed with the partition",
        where={"table": f"{table.db}.{table.name}", "commit_ts": row[Mutation.COMMIT_TS], "key": row[Mutation.KEY]},
        hint=HINT,
    )


def _types(table: TableDef) -> dict[str, int]:
    return {column.name: column.tp for column in table.row_columns}


def _holds(row: Row, side: str, table: TableDef) -> bool:
    assert table.emptied is not None
    where = {"table": f"{table.db}.{table.name}", "commit_ts": row[Mutation.COMMIT_TS]}
    try:
        return table.emptied.holds(row[side], _types(table))
    except SchemaError as error:
        raise SchemaError(error.message, where={**where, **error.where}, hint=error.hint) from error
