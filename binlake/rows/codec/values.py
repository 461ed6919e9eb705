"""Convert any datum to a Python value and to the canonical text of its column: the general path, for every flag.

Canonical text is the text of the MySQL text protocol, made lossless: upper-case hex for BINARY, VARBINARY, BLOBs and
BIT, the shortest round-trip text for FLOAT and DOUBLE, TIMESTAMP in UTC.

Text that is not UTF-8 is read as MySQL's latin1, if `source.invalid-text` allows it. Every such value is counted, and a
unique key must not contain one. `ö` as C3B6 and `ö` as F6 are two keys at the source but one key at the target; they
may come in different windows, so one row would silently replace the other.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from binlake.common.redaction import redact_value
from binlake.common.varint import read_uvarint
from binlake.rows.codec import datum as d
from binlake.rows.codec.datum import format_double, format_float, read_decimal
from binlake.rows.codec.jsons import find_json_end, read_json
from binlake.rows.codec.temporal import format_date, format_duration, format_moment
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo, TableDef

ReadInvalid = Callable[[ColumnInfo, bytes], str]
"""Returns a text for bytes that are not UTF-8, or raises."""

_SHOWN_BYTES = 40
_U64 = (1 << 64) - 1
_S63 = 1 << 63
_Plain = Callable[[bytes, int], tuple[int | float | bytes | None, int]]
_PLAIN: dict[int, _Plain] = {
    d.BYTES: d.read_comparable,
    d.COMPACT: d.read_compact,
    d.INT: d.read_i64,
    d.UINT: d.read_u64,
    d.FLOAT: d.read_float,
    d.DURATION: d.read_i64,
    d.VARINT: d.read_varint,
    d.UVARINT: read_uvarint,
}
InvalidText = Literal["refuse", "latin1"]
"""The handling of texts that are not UTF-8 (`source.invalid-text`)."""
_HOLES = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
_LETTERS = {byte: chr(byte) if byte in _HOLES else bytes((byte,)).decode("cp1252") for byte in range(256)}
"""MySQL's latin1 is windows-1252; bytes that windows-1252 leaves undefined are the control characters of that
number."""


class NotText(ValueError):
    """Bytes of a text column that are not text; `hint` says what to do."""

    hint = (
        'set source.invalid-text = "latin1" to read such values as latin1; or convert them to UTF-8 at the source'
        " (`v = _latin1 X'F6'` becomes `v = 'ö'`), list the commit_ts of each change that contains one, including the "
        "fix, in filter.ignore-txn-commit-ts, which leaves out whole transactions, and copy their rows by hand;"
        " or exclude the table by filter.ignore-table; then run merge again"
    )


def skip(data: bytes, pos: int) -> int:
    """The position after the datum at `pos`."""
    flag = data[pos]
    if flag in (d.VARINT, d.UVARINT):
        return read_uvarint(data, pos + 1)[1]
    if flag == d.DECIMAL:
        return d.take(data, pos + 3, d.compute_decimal_size(data[pos + 1], data[pos + 2]))[1]
    if flag == d.JSON:
        return find_json_end(data, pos + 1)
    return read_plain_value(data, pos)[1]


def read_plain_value(data: bytes, pos: int) -> tuple[int | float | bytes | None, int]:
    """A datum other than DECIMAL and JSON as int, float, bytes or None."""
    flag = data[pos]
    if flag == d.NIL:
        return None, pos + 1
    read = _PLAIN.get(flag)
    if read is None:
        raise ValueError(f"unexpected datum flag {flag}")
    return read(data, pos + 1)


def refuse_invalid(column: ColumnInfo, value: bytes) -> str:
    """Raises NotText. TiDB accepts any bytes in a latin1 column and stores them unchanged."""
    raise NotText(f"the {column.charset} column {column.name} holds bytes that are not UTF-8: {format_bytes(value)}")


def format_bytes(value: bytes) -> str:
    """The first 40 bytes as a hexadecimal literal."""
    return f"X'{value[:_SHOWN_BYTES].hex().upper()}'"


def read_text(
    column: ColumnInfo, data: bytes, pos: int, invalid: ReadInvalid = refuse_invalid
) -> tuple[str | None, int]:
    """(canonical text, next position) of the datum at `pos` for `column`; ValueError if it does not fit the column."""
    flag = data[pos]
    if flag == d.DECIMAL:
        if column.tp != t.NEWDECIMAL:
            raise ValueError(f"a decimal in the {column.type_name} column {column.name}")
        return read_decimal(data, pos + 1, max(column.decimal, 0))
    if flag == d.JSON:
        if column.tp != t.JSON:
            raise ValueError(f"a JSON document in the {column.type_name} column {column.name}")
        return read_json(data, pos + 1)
    value, pos = read_plain_value(data, pos)
    if isinstance(value, bytes):
        return _format_string(column, value, invalid), pos
    return (None if value is None else format_number(column, value)), pos


def format_number(column: ColumnInfo, value: int | float) -> str:
    """Canonical text of a number as TiDB stores it; raises ValueError if the value does not fit the column's type."""
    if isinstance(value, float):
        if column.tp not in (t.FLOAT, t.DOUBLE):
            raise _build_misfit_error(column, value)
        return format_float(value) if column.tp == t.FLOAT else format_double(value)
    return _format_whole_number(column, value)


def _format_string(column: ColumnInfo, value: bytes, invalid: ReadInvalid) -> str:
    if column.tp not in t.STRINGS:
        raise _build_misfit_error(column, value)
    if column.is_binary:
        return value.hex().upper()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return invalid(column, value)


def _format_whole_number(column: ColumnInfo, value: int) -> str:
    tp = column.tp
    if tp in t.INTEGERS:
        return format_integer(column, value)
    if tp == t.DURATION:
        return format_duration(value, column.fsp)
    if value < 0:
        raise _build_misfit_error(column, value)
    if tp in t.MOMENTS:
        return format_moment(value, column.fsp)
    if tp in t.DATES:
        return format_date(value)
    return _format_small_number(column, value)


def format_integer(column: ColumnInfo, value: int) -> str:
    """Text of an integer; an unsigned handle is stored as a signed number (tidb-binlog 1.11)."""
    if column.unsigned:
        return str(value & _U64)
    return str(value if value < _S63 else value - _U64 - 1)


def _format_small_number(column: ColumnInfo, value: int) -> str:
    if column.tp == t.YEAR:
        return f"{value:04d}"
    if column.tp == t.BIT:
        return format_bit(value, column.flen)
    if column.tp == t.ENUM:
        return format_enum(value, column.elems)
    if column.tp == t.SET:
        return format_set(value, column.elems)
    raise _build_misfit_error(column, value)


def format_bit(value: int, width: int) -> str:
    """Hex of a BIT(width), padded to whole bytes; raises ValueError when it has more bits."""
    if value >> max(width, 1):
        raise ValueError(f"{redact_value(value)} does not fit BIT({width})")
    return f"{value:0{(max(width, 1) + 7) // 8 * 2}X}"


def format_enum(value: int, elems: tuple[str, ...]) -> str:
    """Name of an ENUM's ordinal; `name_error_value` for 0 and for ordinals out of range (tidb-binlog 1.12)."""
    return elems[value - 1] if 0 < value <= len(elems) else name_error_value(elems)


def name_error_value(elems: Sequence[str]) -> str:
    """The text of an ENUM's error value (ordinal 0): empty as servers show it; `0` if a member is empty.

    If `0` is a member too, it has more zeros. Servers read such a text, which is no member, as the ordinal.
    """
    if "" not in elems:
        return ""
    return next(zeros for zeros in itertools.accumulate(itertools.repeat("0")) if zeros not in elems)


def format_set(value: int, elems: tuple[str, ...]) -> str:
    """Names of a SET's bits, joined by commas; bits without a name are ignored (tidb-binlog 1.12).

    The empty member alone is `,`, as an empty text is the value without members. Servers read it so too.
    """
    names = [name for bit, name in enumerate(elems) if value >> bit & 1]
    return "," if names == [""] else ",".join(names)


def show_member_text(column: ColumnInfo, text: str) -> str:
    """The canonical text of an ENUM or SET as servers show it: ordinal 0 and the empty member are both empty."""
    if not column.has_empty_member:
        return text
    if column.tp == t.SET:
        return "" if text == "," else text
    return text if text in column.elems else ""


def _build_misfit_error(column: ColumnInfo, value: object) -> ValueError:
    return ValueError(f"the value {redact_value(value)} cannot be in the {column.type_name} column {column.name}")


class NoKeyText(NotText):
    """Bytes of a column of a unique key that are not text."""

    hint = (
        "convert such values to UTF-8 at the source (`k = _latin1 X'F6'` becomes `k = 'ö'`), list the commit_ts of each"
        " change that contains one, including the fix, in filter.ignore-txn-commit-ts, which leaves out whole"
        " transactions, and copy their rows by hand; or exclude the table by filter.ignore-table; then run"
        " merge again"
    )


def decode_latin1(value: bytes) -> str:
    """The text of `value` in MySQL's latin1 (MySQL's manual, "West European Character Sets")."""
    return value.decode("latin-1").translate(_LETTERS)


def build_latin1_reader(table: TableDef, counted: Counter[str]) -> ReadInvalid:
    """A reader of text that is not UTF-8 in rows of `table`; it counts each value in `counted` under its `db.table`.

    The reader raises NoKeyText for a column of a unique key.
    """
    keys, name = find_key_columns(table), f"{table.db}.{table.name}"

    def read(column: ColumnInfo, value: bytes) -> str:
        if column.name in keys:
            raise NoKeyText(
                f"the {column.charset} column {column.name} of a unique key holds bytes that are not UTF-8: "
                f"{format_bytes(value)}; source.invalid-text does not apply to keys, because at the target the value "
                "would equal the value with the same letters in UTF-8"
            )
        counted[name] += 1
        return decode_latin1(value)

    return read


def find_key_columns(table: TableDef) -> frozenset[str]:
    """Columns that a unique key depends on; if it includes a generated column, that may be any column."""
    columns = {column.name: column for column in table.all_columns}
    keys = {part.name for index in table.indexes if index.unique or index.primary for part in index.columns}
    if any(columns[name].is_generated for name in keys):
        return frozenset(columns)
    return frozenset(keys)
