"""Rows, table mutations and whole binlogs from canonical texts: the inverse of the decoder, for workloads and tests.

Written as TiDB writes (tidb-binlog 1.11): old row format, handle first in inserts, both halves in updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from binlake.codec.datum import write_int
from binlake.codec.writers import write_text
from binlake.errors import SchemaError
from binlake.schema import mysqltypes as t
from binlake.schema.info import ColumnInfo, TableDef
from binlake.wire import binlog_pb2 as pb

Row = Mapping[str, str | None]
_ROWID_COLUMN = -1


class RowEncoder:
    """Rows of `table` from canonical texts by column name. Raises ValueError for a text its column cannot hold."""

    def __init__(self, table: TableDef) -> None:
        self.table = table
        self._handle = _handle(table)
        self._in_handle = {c.name for c, whole in self._handle if whole and not _needs_row(table, c)}

    def insert(self, row: Row, rowid: int = 0) -> bytes:
        """An insert row; `rowid` is used where the table has no clustered key."""
        handle = b"".join(_handle_datum(c, row) for c, _ in self._handle) or write_int(rowid)
        columns = [c for c in self.table.row_columns if c.name not in self._in_handle and not _omitted(c, row)]
        return handle + (self._pairs(columns, row) or b"\x00")

    def update(self, before: Row, after: Row, rowid: int = 0) -> bytes:
        """An update row: all columns before, then all columns after."""
        columns = self.table.row_columns
        return b"".join(self._pairs(columns, half) + self._rowid(rowid) for half in (before, after))

    def delete(self, row: Row, rowid: int = 0) -> bytes:
        """A delete row."""
        return self._pairs(self.table.row_columns, row) + self._rowid(rowid)

    def _pairs(self, columns: Iterable[ColumnInfo], row: Row) -> bytes:
        return b"".join(write_int(c.id) + write_text(c, row.get(c.name)) for c in columns)

    def _rowid(self, rowid: int) -> bytes:
        return b"" if self._handle else write_int(_ROWID_COLUMN) + write_int(rowid)


class MutationBuilder:
    """A TableMutation from row changes, in the order they happened (S1-02)."""

    def __init__(self, table: TableDef) -> None:
        self._encoder = RowEncoder(table)
        self.message = pb.TableMutation(table_id=table.id)

    def insert(self, row: Row, rowid: int = 0) -> MutationBuilder:
        """Append an insert."""
        self.message.inserted_rows.append(self._encoder.insert(row, rowid))
        self.message.sequence.append(pb.Insert)
        return self

    def update(self, before: Row, after: Row, rowid: int = 0) -> MutationBuilder:
        """Append an update."""
        self.message.updated_rows.append(self._encoder.update(before, after, rowid))
        self.message.sequence.append(pb.Update)
        return self

    def delete(self, row: Row, rowid: int = 0) -> MutationBuilder:
        """Append a delete."""
        self.message.deleted_rows.append(self._encoder.delete(row, rowid))
        self.message.sequence.append(pb.DeleteRow)
        return self


def prewrite_value(schema_version: int, mutations: Iterable[pb.TableMutation]) -> bytes:
    """A serialised PrewriteValue; mutations in their order."""
    return pb.PrewriteValue(schema_version=schema_version, mutations=mutations).SerializeToString()


def prewrite_binlog(start_ts: int, key: bytes, value: bytes) -> bytes:
    """A serialised P; the fields that TiDB always emits are written, zero or not."""
    return pb.Binlog(
        tp=pb.Prewrite,
        start_ts=start_ts,
        commit_ts=0,
        prewrite_key=key,
        prewrite_value=value,
        ddl_job_id=0,
        ddl_schema_state=0,
    ).SerializeToString()


def commit_binlog(start_ts: int, commit_ts: int, key: bytes, value: bytes = b"") -> bytes:
    """A serialised C; with `value` it is complete, as pumps hand it out."""
    message = pb.Binlog(
        tp=pb.Commit, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key, ddl_job_id=0, ddl_schema_state=0
    )
    if value:
        message.prewrite_value = value
    return message.SerializeToString()


def _handle(table: TableDef) -> list[tuple[ColumnInfo, bool]]:
    """(column, wholly in the handle) of each handle datum; [] where the handle is a row id."""
    if table.pk_is_handle:
        return [(c, True) for c in table.row_columns if c.flag & t.FLAG_PRIMARY]
    index = table.primary_index
    if not table.is_common_handle or index is None:
        return []
    return [(_column(table, c.name), c.length == t.UNSPECIFIED_LENGTH) for c in index.columns]


def _column(table: TableDef, name: str) -> ColumnInfo:
    column = table.column(name)
    if column is None:
        raise SchemaError(
            "a key names a column that the table does not have", where={"table": table.name, "column": name}
        )
    return column


def _needs_row(table: TableDef, column: ColumnInfo) -> bool:
    # The handle would hold a sort key under the new collation: such a column is in the row as well.
    return table.is_common_handle and column.tp in t.STRINGS and not column.is_binary


def _handle_datum(column: ColumnInfo, row: Row) -> bytes:
    text = row.get(column.name)
    if text is None:
        raise ValueError(f"the key column {column.name} has no value")
    if column.tp in t.INTEGERS:
        number = int(text)
        return write_int(number - (1 << 64) if number >> 63 and number > 0 else number)
    return write_text(column, text)


def _omitted(column: ColumnInfo, row: Row) -> bool:
    # TiDB leaves a NULL out when neither default says otherwise.
    return row.get(column.name) is None and column.default is None and column.origin_default is None
