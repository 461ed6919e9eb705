"""Canonical texts as SQL literals, so that the server stores the source's value, and stored values as canonical texts.

Sources: MISSION S0-22; hazards R-12, R-44. The session uses utf8mb4 and does not set NO_BACKSLASH_ESCAPES
(`binlake.target.session.session`). The functions of one value are the reference; those of whole columns give the same
text by Arrow's string kernels. They search in all bytes of a column at once, because a kernel that searches each value
costs ten times as much as joining the texts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.rows.codec.datum import format_double, format_float
from binlake.rows.codec.encode import parse_flat_number
from binlake.rows.codec.values import name_error_value
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_NUMBERS = t.INTEGERS | {t.NEWDECIMAL, t.YEAR}
FLOAT_MAX, FLOAT_MAX_LITERAL = "3.4028235e38", "3.4028234663852886e38"
"""Read as a double, the shortest text of the greatest FLOAT exceeds that FLOAT, so MariaDB refuses it as out of
range."""
_SEARCHED = 256 << 10
"""Bytes that are searched at a time: they stay in a processor's cache."""
Array = Any
"""A pyarrow Array of strings (pyarrow has no stubs)."""
_CHARACTERS = t.STRINGS | {t.ENUM, t.SET, t.JSON}


class LiteralKind(Enum):
    """The form in which the canonical text of a column is written as a literal."""

    NUMBER = "number"
    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"
    JSON = "json"
    BINARY = "binary"
    BIT = "bit"


def choose_literal_kind(column: ColumnInfo) -> LiteralKind:
    """The kind of a column; temporal, ENUM and SET values are quoted text."""
    if column.tp == t.BIT:
        return LiteralKind.BIT
    if column.is_binary:
        return LiteralKind.BINARY
    if column.tp in _NUMBERS:
        return LiteralKind.NUMBER
    return {t.FLOAT: LiteralKind.FLOAT, t.DOUBLE: LiteralKind.DOUBLE, t.JSON: LiteralKind.JSON}.get(
        column.tp, LiteralKind.TEXT
    )


def format_value_literal(text: str | None, kind: LiteralKind) -> str:
    """The literal that stores `text` (canonical; None = NULL) into a column of `kind`."""
    if text is None:
        return "NULL"
    if kind is LiteralKind.NUMBER:
        return text
    if kind is LiteralKind.FLOAT:
        return _format_real_literal(text.replace(FLOAT_MAX, FLOAT_MAX_LITERAL))
    if kind is LiteralKind.DOUBLE:
        return _format_real_literal(text)
    if kind is LiteralKind.BINARY:
        return f"X'{text}'"
    # X'..' is a string in MariaDB's comparisons; 0x.. is bytes for a BIT column and a number in a comparison.
    return f"0x{text}" if kind is LiteralKind.BIT else quote(text)


def format_match_literal(text: str | None, kind: LiteralKind) -> str:
    """The literal that compares equal to a stored value of `text`.

    Differs from `format_value_literal` for FLOAT: a server compares the 32-bit value widened to 64 bits, so 1.1 never
    matches while 1.100000023841858e0 does (hazards R-44, measured).
    """
    if text is None or kind is not LiteralKind.FLOAT:
        return format_value_literal(text, kind)
    return widen_float(text)


def format_match(text: str | None, column: ColumnInfo) -> str:
    """The literal that compares equal to a stored value of `column`."""
    if text is not None and column.has_empty_member:
        # As text, the value without a member equals the empty member.
        return str(parse_flat_number(column, text))
    return format_match_literal(text, choose_literal_kind(column))


def widen_float(text: str) -> str:
    """A double literal equal to the 32-bit float that `text` means."""
    return _format_real_literal(repr(struct.unpack("<f", struct.pack("<f", float(text)))[0]))


def quote(text: str) -> str:
    """A string literal of `text`, safe without NO_BACKSLASH_ESCAPES."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def quote_name(name: str) -> str:
    """An identifier in back quotes."""
    return "`" + name.replace("`", "``") + "`"


def quote_qualified_name(db: str, table: str) -> str:
    """`db`.`table`, quoted."""
    return f"{quote_name(db)}.{quote_name(table)}"


def _format_real_literal(text: str) -> str:
    # Without an exponent the server would read a DECIMAL: -0 would lose its sign, and long numbers be converted twice.
    return text if "e" in text or "E" in text else text + "e0"


def build_images_from_rows(rows: Sequence[Mapping[str, str | None]], columns: Sequence[str]) -> dict[str, Array]:
    """Columns of row dictionaries (column name -> canonical text); a missing name raises KeyError."""
    return {name: pa.array([row[name] for row in rows], pa.large_string()) for name in columns}


def format_value_literals(values: Array, column: ColumnInfo) -> Array:
    """`format_value_literal` of each value of a string column."""
    return _format_literals(values, choose_literal_kind(column))


def format_match_literals(values: Array, column: ColumnInfo) -> Array:
    """`format_match` of each value of a string column."""
    if column.has_empty_member:
        return pa.array([format_match(text, column) for text in values.to_pylist()], pa.large_string())
    kind = choose_literal_kind(column)
    return _widen(values) if kind is LiteralKind.FLOAT else _format_literals(values, kind)


def join_tuples(literals: Sequence[Array]) -> Array:
    """`(a,b,…)` per row from columns of literals; a single column gives `(a)`."""
    return _concatenate(_put_in_parentheses([[literal] for literal in literals]))


def join_value_tuples(columns: Sequence[tuple[Array, ColumnInfo]]) -> Array:
    """`join_tuples` of the `format_value_literals` of each (values, column).

    Takes one pass over the text if no value is NULL.
    A comma follows each tuple, so that neighbours are joined as in a statement (`JoinedTexts`).
    """
    pieces = _put_in_parentheses(
        [_build_literal_pieces(values, choose_literal_kind(column)) for values, column in columns]
    )
    return _concatenate([*pieces, ","])


def append_commas(texts: Array) -> Array:
    """Each of `texts` with a comma after it."""
    return _concatenate([texts, ","])


class JoinedTexts:
    """A large string column without NULL whose texts all end with the `separator`.

    The texts are in one Arrow buffer, so texts of neighbouring rows are already joined, for any batch.
    """

    def __init__(self, column: Any, separator: str = ",") -> None:
        self._tail = len(separator.encode())
        offsets, data = column.buffers()[1:]
        self._ends = (
            np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset) if len(column) else np.zeros(1)
        )
        self._data = memoryview(data if data is not None else b"")

    @property
    def sizes(self) -> Any:
        """Bytes of each text (numpy), with its separator."""
        return np.diff(self._ends)

    def join_rows(self, start: int, stop: int) -> bytes:
        """The texts of the rows `start` to `stop` - 1 (at least one row), with separators between them (UTF-8)."""
        return bytes(self._data[int(self._ends[start]) : int(self._ends[stop]) - self._tail])


def _put_in_parentheses(columns: Sequence[Sequence[Array | str]]) -> list[Array | str]:
    pieces: list[Array | str] = ["("]
    for number, column in enumerate(columns):
        pieces += [",", *column] if number else column
    return [*pieces, ")"]


def _concatenate(pieces: Sequence[Array | str]) -> Array:
    """Join columns and constant texts row by row; neighbouring constants become one."""
    joined: list[Any] = []
    for constant, group in groupby(pieces, key=lambda piece: isinstance(piece, str)):
        texts = list(group)
        joined += [build_large_scalar("".join(texts))] if constant else texts
    return pc.binary_join_element_wise(*joined, build_large_scalar(""))


_AFFIXES = {LiteralKind.BIT: ("0x", ""), LiteralKind.BINARY: ("X'", "'"), LiteralKind.TEXT: ("'", "'")}
_AFFIXES[LiteralKind.JSON] = _AFFIXES[LiteralKind.TEXT]


def _build_literal_pieces(values: Array, kind: LiteralKind) -> list[Array | str]:
    """The pieces that `_concatenate` joins to the literals of `values`."""
    if values.null_count:
        return [_format_literals(values, kind)]
    before, after = _AFFIXES.get(kind, ("", ""))
    return [before, _format_literal_text(values, kind), after]


def _format_literals(values: Array, kind: LiteralKind) -> Array:
    before, after = _AFFIXES.get(kind, ("", ""))
    inner = _format_literal_text(values, kind)
    return _replace_nulls(_concatenate([before, inner, after]) if before else inner)


def _format_literal_text(values: Array, kind: LiteralKind) -> Array:
    """The text between a literal's quotes."""
    values = values.cast(pa.large_string())
    if kind is LiteralKind.FLOAT:
        return _format_real_literals(_replace(values, FLOAT_MAX, FLOAT_MAX_LITERAL))
    if kind is LiteralKind.DOUBLE:
        return _format_real_literals(values)
    return _escape(values) if kind in (LiteralKind.TEXT, LiteralKind.JSON) else values


def _escape(values: Array) -> Array:
    for char, put in (("\\", "\\\\"), ("'", "\\'"), ("\0", "\\0")):
        values = _replace(values, char, put)
    return values


def _replace(values: Array, text: str, replacement: str) -> Array:
    # Searching first is cheaper than copying a column in which nothing is replaced.
    return pc.replace_substring(values, text, replacement) if _may_contain(values, text) else values


def _may_contain(values: Array, text: str) -> bool:
    """True if the ASCII `text` may be in a large string column; bytes behind a NULL count too."""
    offsets, data = values.buffers()[1:]
    if data is None or not len(values):
        return False
    ends = np.frombuffer(offsets, np.int64, len(values) + 1, 8 * values.offset)
    first, last, wanted = int(ends[0]), int(ends[-1]), text.encode()
    # Python searches in bytes only, which are a copy: of all at once it would be new memory, cleared by the kernel.
    overlap = len(wanted) - 1
    pieces = (data.slice(at, min(_SEARCHED, last - at)) for at in range(first, last, _SEARCHED - overlap))
    return any(wanted in piece.to_pybytes() for piece in pieces)


def _format_real_literals(values: Array) -> Array:
    if not _may_contain(values, "e") and not _may_contain(values, "E"):
        return _concatenate([values, "e0"])
    plain = pc.invert(pc.match_substring(values, "e", ignore_case=True))
    return pc.if_else(plain, _concatenate([values, "e0"]), values)


def _widen(values: Array) -> Array:
    numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0)).astype(np.float32).astype(np.float64)
    texts = pa.array([repr(number) for number in numbers.tolist()], pa.large_string())
    return _replace_nulls(
        _format_real_literals(pc.if_else(values.is_null(), pa.scalar(None, pa.large_string()), texts))
    )


def _replace_nulls(values: Array) -> Array:
    return pc.fill_null(values, build_large_scalar("NULL"))


def build_large_scalar(text: str) -> Any:
    """A constant to combine with columns of type large_string."""
    return pa.scalar(text, pa.large_string())


def render_column_sql(column: ColumnInfo) -> str:
    """The SQL whose result `build_text_reader` converts to the canonical text of a value of `column`."""
    # HEX of a large value may exceed a packet, so bytes are sent unchanged.
    return quote_name(column.name) if is_bytes(column) else render_text_sql(column)


def build_text_reader(column: ColumnInfo) -> Callable[[Any], str | None]:
    """The function that converts a server's result of `render_column_sql` to the canonical text."""
    if is_bytes(column):
        return lambda value: None if value is None else bytes(value).hex().upper()
    if column.tp == t.FLOAT:
        return lambda value: None if value is None else format_float(float(value))
    if column.tp == t.DOUBLE:
        return lambda value: None if value is None else format_double(float(value))
    return lambda value: value.decode() if isinstance(value, bytes) else value


def is_bytes(column: ColumnInfo) -> bool:
    """True for columns whose values a server sends as bytes."""
    return column.is_binary and column.tp != t.BIT


def render_text_sql(column: ColumnInfo) -> str:
    """The SQL of the text of a value that is not bytes."""
    name = quote_name(column.name)
    if column.tp == t.BIT:
        return f"LPAD(HEX({name} + 0),{_count_bit_digits(column)},'0')"
    if column.has_empty_member:
        name = _render_member_sql(column)
    if column.tp in _CHARACTERS:
        return f"CONVERT({name} USING utf8mb4)"
    if column.tp == t.FLOAT:
        # The text of a FLOAT is cut to 6 digits, so convert it to a DOUBLE.
        return f"CONCAT({name} + 0e0)"
    # `+ 0` removes the padding of ZEROFILL.
    return f"CONCAT({name} + 0)" if column.tp in t.INTEGERS else f"CONCAT({name})"


def _render_member_sql(column: ColumnInfo) -> str:
    """The canonical text of an ENUM or SET with an empty member."""
    name = quote_name(column.name)
    if column.tp == t.ENUM:
        return f"IF({name} = 0,'{name_error_value(column.elems)}',{name})"
    # MySQL and MariaDB, not TiDB, omit an empty member that comes first, with its comma.
    own = 1 << column.elems.index("")
    first = f"{name} & {own} AND NOT {name} & {own - 1}"
    return f"IF({first},CONCAT(',',TRIM(LEADING ',' FROM {name})),{name})"


def _count_bit_digits(column: ColumnInfo) -> int:
    return (max(column.flen, 1) + 7) // 8 * 2
