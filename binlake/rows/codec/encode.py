"""Encode canonical texts as datums, rows, table mutations and whole binlogs: the inverse of the decoder.

`derive_filled_text` gives the texts of defaults. Whole binlogs are for workloads and tests. The encoding is
TiDB's (tidb-binlog 1.11): old row format, handle first in inserts, both halves in updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isfinite

from binlake.common.redaction import redact_value
from binlake.errors import SchemaError
from binlake.rows.codec import datum as d
from binlake.rows.codec.casts import CastMoment, cast_text
from binlake.rows.codec.datum import as_float32, write_decimal, write_duration, write_int
from binlake.rows.codec.jsons import write_json
from binlake.rows.codec.temporal import pack_moment, parse_duration, round_moment
from binlake.rows.codec.values import format_bit, name_error_value, read_text
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo, TableDef
from binlake.rows.schema.job import PUBLIC, WRITE_ONLY, WRITE_REORG
from binlake.wire import binlog_pb2 as pb

_NUMERIC = t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE, t.YEAR}
_WHOLE_SECONDS = 19
_WRITTEN = ColumnInfo(
    id=0, name="", offset=0, tp=t.VARCHAR, flag=0, flen=-1, decimal=-1, charset="utf8mb4", collate="utf8mb4_bin",
    elems=(), state=5, default=None, default_bit=None, default_is_expr=False, origin_default=None,
    origin_default_bit=None, generated_expr="", generated_stored=False, hidden=False, comment="",
)  # fmt: skip
"""A text column that stands for the text of a default."""
_BITS = {t.TINY: 8, t.SHORT: 16, t.INT24: 24, t.LONG: 32, t.LONGLONG: 64}
Row = Mapping[str, str | None]
_ROWID_COLUMN = -1


def write_text(column: ColumnInfo, text: str | None) -> bytes:
    """The datum of a canonical text; raises ValueError if the text is not valid for the column's type."""
    if text is None:
        return b"\x00"
    if column.tp in t.STRINGS:
        return d.write_bytes(bytes.fromhex(text) if column.is_binary else text.encode())
    if column.tp == t.NEWDECIMAL:
        return b"\x06" + write_decimal(text, *derive_decimal_layout(column))
    if column.tp == t.JSON:
        return b"\x0a" + write_json(text)
    if column.tp in (t.FLOAT, t.DOUBLE):
        return d.write_float(_parse_float(column, text))
    number = parse_flat_number(column, text)
    signed = (column.tp in t.INTEGERS and not column.unsigned) or column.tp in (t.DURATION, t.YEAR)
    return d.write_int(number) if signed else d.write_uint(number)


def derive_decimal_layout(column: ColumnInfo) -> tuple[int, int]:
    """(precision, scale) of a DECIMAL column; MySQL's default is (10, 0)."""
    return (column.flen if column.flen > 0 else 10), max(column.decimal, 0)


def parse_flat_number(column: ColumnInfo, text: str) -> int:
    """The number that TiDB stores for an integer, temporal, ENUM, SET or BIT text."""
    if column.tp in t.INTEGERS or column.tp == t.YEAR:
        return _parse_integer(column, text)
    if column.tp in t.MOMENTS or column.tp in t.DATES:
        return pack_moment(text)
    if column.tp == t.DURATION:
        return parse_duration(text)
    if column.tp == t.ENUM:
        return 0 if text == name_error_value(column.elems) else _find_position(column, text) + 1
    if column.tp == t.SET:
        return sum({1 << _find_position(column, name) for name in text.split(",")}) if text else 0
    if column.tp == t.BIT:
        return _parse_bits(column, text)
    raise ValueError(f"the type of column {column.name} ({column.tp}) is not a number")


def _parse_integer(column: ColumnInfo, text: str) -> int:
    number, bits = int(text), _BITS.get(column.tp, 64)
    low, high = (0, 1 << bits) if column.unsigned else (-1 << bits - 1, 1 << bits - 1)
    if column.tp == t.YEAR:
        low, high = 0, 2156
    if not low <= number < high:
        raise ValueError(f"{text} is out of range for column {column.name}")
    return number


def _parse_float(column: ColumnInfo, text: str) -> float:
    number = as_float32(text) if column.tp == t.FLOAT else float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is out of range for column {column.name}")
    return number


def _parse_bits(column: ColumnInfo, text: str) -> int:
    number = int(text, 16)
    format_bit(number, column.flen)
    return number


def _find_position(column: ColumnInfo, name: str) -> int:
    if name not in column.elems:
        raise ValueError(f"{redact_value(name)} is not an element of column {column.name}")
    return column.elems.index(name)


@lru_cache(maxsize=4096)
def derive_filled_text(column: ColumnInfo) -> str | None:
    """The value of `column` in a row that lacks it: the origin default, else NULL, else the type's zero (tidb-binlog
    5.5).

    Raises SchemaError naming the column if the origin default is not a value of its type.
    """
    try:
        if column.tp == t.BIT and column.origin_default_bit is not None:
            return format_bit(int.from_bytes(column.origin_default_bit, "big"), column.flen)
        if column.tp in t.STRINGS and column.is_binary and column.origin_default_bit is not None:
            # Only a feeder states bytes here: TiDB stores U+FFFD for those that are not UTF-8.
            return _pad_bytes(column, column.origin_default_bit)
        if column.origin_default is not None:
            return _convert_default(column, column.origin_default)
    except ValueError as error:
        raise SchemaError(
            f"the origin default of a column cannot be read: {error}",
            where={"column": column.name, "default": column.origin_default},
        ) from error
    return format_zero(column) if column.not_null else None


def _convert_default(column: ColumnInfo, default: str) -> str | None:
    if column.tp in t.STRINGS:
        return _convert_default_string(column, default)
    if column.tp == t.BIT:
        return format_bit(int.from_bytes(default.encode(), "big"), column.flen)
    if column.tp in _NUMERIC:
        # TiDB stores some defaults as they were written, `1.555` or `1e2`, and converts them when it fills a row.
        return cast_text(_WRITTEN, column, default, CastMoment())
    if column.tp in t.MOMENTS and len(default) > _WHOLE_SECONDS:
        default = round_moment(default, column.fsp)
    return read_text(column, write_text(column, default), 0)[0]


def _convert_default_string(column: ColumnInfo, default: str) -> str:
    if not column.is_binary:
        return default.rstrip(" ") if column.tp == t.STRING else default
    return _pad_bytes(column, default.encode())


def _pad_bytes(column: ColumnInfo, value: bytes) -> str:
    width = column.flen if column.tp == t.STRING else 0
    return value.ljust(width, b"\0").hex().upper()


def format_zero(column: ColumnInfo) -> str:
    """The zero value of a column's type: 0, "", the zero date, the first element of an ENUM."""
    if column.tp == t.ENUM:
        return column.elems[0] if column.elems else ""
    if column.tp == t.JSON:
        return "null"
    if column.tp in t.STRINGS:
        return _convert_default_string(column, "")
    if column.tp == t.NEWDECIMAL:
        return _convert_default(column, "0") or ""
    if column.tp in (t.FLOAT, t.DOUBLE):
        return "0"
    signed = column.tp in (t.DURATION, t.YEAR) or (column.tp in t.INTEGERS and not column.unsigned)
    return read_text(column, (d.write_int if signed else d.write_uint)(0), 0)[0] or ""


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
