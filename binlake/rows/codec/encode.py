"""Encode rows, table mutations and whole binlogs from canonical texts: the inverse of the decoder, for workloads and
tests.

The encoding is TiDB's (tidb-binlog 1.11): old row format, handle first in inserts, both halves in updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from binlake.errors import SchemaError
from binlake.rows.codec.datum import write_duration, write_int
from binlake.rows.codec.writers import parse_flat_number, write_text
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.actions import PUBLIC, WRITE_ONLY, WRITE_REORG
from binlake.rows.schema.info import ColumnInfo, TableDef
from binlake.wire import binlog_pb2 as pb

Row = Mapping[str, str | None]
_ROWID_COLUMN = -1


class RowEncoder:
    """Encodes rows of `table` from canonical texts by column name. Raises ValueError for a text its column cannot hold.

    `new_collation` is the cluster's setting: if it is on, TiDB stores a text of a clustered key in the row too, because
    the handle holds only its sort key. This encoder writes the text itself into the handle; readers ignore it there.
    """

    def __init__(self, table: TableDef, new_collation: bool = True) -> None:
        self.table = table
        self._handle = _list_handle_columns(table)
        self._inserted = [c for c in table.all_columns if _is_written(c) and not self._skips(c, new_collation)]
        self._updated = [c for c in table.all_columns if _is_written(c)]
        self._deleted = [c for c in table.all_columns if c.is_public]

    def _skips(self, column: ColumnInfo, new_collation: bool) -> bool:
        restored = new_collation and self.table.is_common_handle and column.tp in t.STRINGS and not column.is_binary
        return not restored and any(c is column and length == t.UNSPECIFIED_LENGTH for c, length in self._handle)

    def insert(self, row: Row, rowid: int = 0) -> bytes:
        """An insert row; `rowid` is used if the table has no clustered key."""
        handle = b"".join(self._encode_handle_datum(c, length, row) for c, length in self._handle) or write_int(rowid)
        columns = [c for c in self._inserted if not _is_omitted(c, row)]
        return handle + (self._encode_pairs(columns, row) or b"\x00")

    def update(self, before: Row, after: Row, rowid: int = 0) -> bytes:
        """An update row: all columns before, then all columns after."""
        return b"".join(self._encode_pairs(self._updated, half) + self._encode_rowid(rowid) for half in (before, after))

    def delete(self, row: Row, rowid: int = 0) -> bytes:
        """A delete row; it includes virtual and hidden columns."""
        return self._encode_pairs(self._deleted, row) + self._encode_rowid(rowid)

    def _encode_pairs(self, columns: Iterable[ColumnInfo], row: Row) -> bytes:
        return b"".join(write_int(c.id) + write_text(c, row.get(c.name)) for c in columns)

    def _encode_rowid(self, rowid: int) -> bytes:
        return b"" if self._handle else write_int(_ROWID_COLUMN) + write_int(rowid)

    def _encode_handle_datum(self, column: ColumnInfo, length: int, row: Row) -> bytes:
        text = row.get(column.name)
        if text is None:
            raise ValueError(f"the key column {column.name} has no value")
        if column.tp == t.DURATION:
            return write_duration(parse_flat_number(column, text))
        if self.table.pk_is_handle:
            number = parse_flat_number(column, text)
            return write_int(number - (1 << 64) if number >> 63 > 0 else number)
        if length != t.UNSPECIFIED_LENGTH:
            text = text[: length * 2 if column.is_binary else length]
        return write_text(column, text)


class MutationBuilder:
    """Builds a TableMutation from row changes, in the order in which they happened (S1-02)."""

    def __init__(self, table: TableDef, new_collation: bool = True) -> None:
        self._encoder = RowEncoder(table, new_collation)
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


def encode_prewrite_value(schema_version: int, mutations: Iterable[pb.TableMutation]) -> bytes:
    """A serialised PrewriteValue with the mutations in the given order."""
    return pb.PrewriteValue(schema_version=schema_version, mutations=mutations).SerializeToString()


def encode_commit_binlog(start_ts: int, commit_ts: int, key: bytes, value: bytes = b"") -> bytes:
    """A serialised commit binlog; with `value` it is complete, as pumps send it."""
    message = pb.Binlog(
        tp=pb.Commit, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key, ddl_job_id=0, ddl_schema_state=0
    )
    if value:
        message.prewrite_value = value
    return message.SerializeToString()


def _list_handle_columns(table: TableDef) -> list[tuple[ColumnInfo, int]]:
    """(column, length of its prefix or -1) of each handle datum; [] if the handle is a row id."""
    if table.pk_is_handle:
        return [(c, t.UNSPECIFIED_LENGTH) for c in table.row_columns if c.flag & t.FLAG_PRIMARY]
    index = table.primary_index
    if not table.is_common_handle or index is None:
        return []
    return [(_require_column(table, c.name), c.length) for c in index.columns]


def _require_column(table: TableDef, name: str) -> ColumnInfo:
    column = table.find_column(name)
    if column is None:
        raise SchemaError(
            "a key names a column that the table does not have", where={"table": table.name, "column": name}
        )
    return column


def _is_written(column: ColumnInfo) -> bool:
    """True if TiDB writes the column into inserts and updates: it does for public and half-added, not for virtual
    ones."""
    return column.state in (WRITE_ONLY, WRITE_REORG, PUBLIC) and not column.is_virtual


def _is_omitted(column: ColumnInfo, row: Row) -> bool:
    # TiDB leaves a NULL out if the column has no default.
    defaults = (column.default, column.default_bit, column.origin_default, column.origin_default_bit)
    return row.get(column.name) is None and all(default is None for default in defaults)
