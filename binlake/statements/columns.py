"""Write the literals of whole columns by Arrow's string kernels: the text of `literal`, without an object per value.

A search in a column is a single search in all its bytes, because a kernel that searches each value costs ten times as
much as joining the texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.rows.schema import ColumnInfo
from binlake.statements.literal import FLOAT_MAX, FLOAT_MAX_LITERAL, LiteralKind, choose_literal_kind, format_match

_SEARCHED = 256 << 10
"""Bytes that are searched at a time: they stay in a processor's cache."""

Array = Any
"""A pyarrow Array of strings (pyarrow has no stubs)."""


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
