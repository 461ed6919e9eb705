"""The values on which two row changes can collide: unique keys of both images, or the whole row if it has none.

Sources: data-migration 1.4, 6.3 (DM), tidb-binlog 5.10 (drainer), S0-70, S0-71. DM lower-cases values and joins them by
dots; Binlake's keys are tuples folded by collation. They include the target table, so that two shards routed into one
table collide. A key that cannot be computed (on an expression, or on a virtual column, which is not in the images) is
the same key for all rows of its table, so these rows run one after another.

Texts are folded so that all values that a collation treats as equal have the same text. Different values may share a
text too: two changes with the same folded value run in order, so this only costs time. For characters whose equals are
unknown (rare scripts, circled or small forms) the folding gives no text, and the change runs alone. Sources:
data-migration 1.4 (DM lower-cases, which misses accents and padding), hazards R-13. A test compares with a server's
sort keys.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from binlake.changes.net import RowEvent
from binlake.changes.net.net import Row
from binlake.common.sql import Dialect
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name

_KNOWN = (
    (0x20, 0x7E),  # ASCII
    (0xA1, 0x13E),  # Latin of Europe
    (0x141, 0x17F),
    (0x386, 0x3CE),  # Greek
    (0x400, 0x45F),  # Cyrillic
    (0x5D0, 0x5EA),  # Hebrew
    (0x621, 0x63A),  # Arabic
    (0x641, 0x64A),
    (0x660, 0x669),
    (0xE01, 0xE3A),  # Thai
    (0x2010, 0x2026),  # punctuation
    (0x3001, 0x3002),
    (0x3041, 0x3093),  # kana
    (0x30A1, 0x30F6),
    (0x4E00, 0x9FFF),  # ideographs
    (0xAC00, 0xD7A3),  # Hangul
    (0xFF01, 0xFF5E),  # full width
    (0x1F300, 0x1FAFF),  # emoji: equal only to each other
)
_LETTERS = {"æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "ł": "l", "ħ": "h", "ı": "i", "þ": "th", "ŧ": "t"}
_FINAL = {"ך": "כ", "ם": "מ", "ן": "נ", "ף": "פ", "ץ": "צ", "ґ": "г", "ŋ": "n", "ĸ": "q"}
_KANA = str.maketrans("ぁぃぅぇぉっゃゅょゎゕゖ", "あいうえおつやゆよわかけ")
_EQUALS = str.maketrans({**_LETTERS, **_FINAL, **{chr(code): chr(code - 0x60) for code in range(0x30A1, 0x30F7)}})
_IGNORED = frozenset({"Mn", "Me", "Mc", "Cc", "Cf"})


def fold(text: str, collation: str) -> str | None:
    """The representative of `text` in `collation` (TiDB's name); trailing spaces are ignored. None = unknown."""
    text = text.rstrip(" ")
    if collation.endswith("_bin") or collation == "binary":
        return text
    if text.isascii() and text.isprintable():
        return text.lower()
    if not all(_is_known(char) for char in text):
        return None
    return "".join(_fold_char(char, single_weight=collation.endswith("general_ci")) for char in text).rstrip(" ")


def _is_known(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _KNOWN)


def _fold_char(char: str, *, single_weight: bool) -> str:
    """The folded form of `char`; `single_weight`: one letter, as in general_ci, where ß equals s."""
    if ord(char) > 0xFFFF:
        return "\ufffd"
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    text = text.translate(_EQUALS).translate(_KANA)
    text = "".join(str(unicodedata.digit(c, c)) for c in text if unicodedata.category(c) not in _IGNORED)
    return text[:1] if single_weight and not 0xAC00 <= ord(char) <= 0xD7A3 else text


UNKNOWN = "\0unknown"
"""Replaces a value whose equals are unknown (`collation`); a change with such a value runs alone."""

_TEXTS = t.STRINGS | {t.ENUM, t.SET}


class ConflictKey(NamedTuple):
    """Values of a unique key. Changes that share one must keep their order. Its text is DM's: `1.a.123.b.db.tb1`."""

    table: str
    columns: tuple[str, ...]
    values: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{value}.{column}" for column, value in zip(self.columns, self.values, strict=True)]
        return ".".join([*parts, self.table])


@dataclass(frozen=True)
class _KeyPart:
    """A column of a unique index; `length`: its characters or bytes in the index (-1 = all)."""

    column: ColumnInfo
    length: int
    name: str

    def read_value(self, row: Row) -> str | None:
        text = read_image_text(row, self.column)
        return None if text is None else self._derive_comparable(text)

    def _derive_comparable(self, text: str) -> str:
        column = self.column
        if column.is_binary:
            return text if self.length < 0 else text[: 2 * self.length]
        if column.tp in (t.FLOAT, t.DOUBLE):
            return format_plain_float(text)
        if column.tp in _TEXTS:
            folded = fold(text if self.length < 0 else text[: self.length], column.collate.lower())
            return UNKNOWN if folded is None else folded
        return text


class ChangeKeys:
    """The conflict keys of changes of `table`, its definition at the target."""

    def __init__(self, table: TableDef, dialect: Dialect) -> None:
        self._name = f"{table.db}.{table.name}"
        indexes = [index for index in _sort_indexes(table) if dialect != "mariadb" or _is_visible(index, table)]
        self._indexes = [parts for index in indexes if (parts := _list_parts(index, table)) is not None]
        # MariaDB has no index on an expression, so nothing can collide there.
        self._serial = tuple(
            ConflictKey(self._name, (f"index {index.name}",), ("any",))
            for index in indexes
            if _list_parts(index, table) is None
        )
        # JSON is left out, because equal documents can have different texts.
        self._row = [_KeyPart(c, -1, fold_name(c.name)) for c in table.row_columns if c.tp != t.JSON]

    def list_keys(self, event: RowEvent) -> tuple[ConflictKey, ...]:
        """The keys of the image before, then of the image after; never empty. Raises SchemaError for wrong images."""
        return tuple(
            key for image in event.require_images() if image is not None for key in self._list_image_keys(image)
        )

    def _list_image_keys(self, row: Row) -> Iterator[ConflictKey]:
        keys = [key for parts in self._indexes if (key := self._build_key(parts, row)) is not None]
        if not keys and not self._serial:
            yield self._build_whole_row_key(row)
        yield from keys
        yield from self._serial

    def _build_key(self, parts: list[_KeyPart], row: Row) -> ConflictKey | None:
        # NULL collides with nothing; only the other columns of a composite index count, as in DM.
        present = [(part.name, value) for part in parts if (value := part.read_value(row)) is not None]
        if not present:
            return None
        names, values = zip(*present, strict=True)
        return ConflictKey(self._name, names, values)

    def _build_whole_row_key(self, row: Row) -> ConflictKey:
        values = [(part.name, _format_exactly(read_image_text(row, part.column), part.column)) for part in self._row]
        return ConflictKey(self._name, tuple(name for name, _ in values), tuple(value for _, value in values))


def read_image_text(row: Row, column: ColumnInfo) -> str | None:
    """The value of `column`; if a deleted row was written before ADD COLUMN and lacks it, the origin default."""
    return row[column.name] if column.name in row else derive_filled_text(column)


def format_plain_float(text: str) -> str:
    """A number without an exponent; -0 becomes 0, because they compare as equal."""
    return format(Decimal(repr(float(text) + 0.0)), "f").removesuffix(".0")


def _format_exactly(text: str | None, column: ColumnInfo) -> str:
    if text is None:
        return "NULL"
    return format_plain_float(text) if column.tp in (t.FLOAT, t.DOUBLE) else text


def _sort_indexes(table: TableDef) -> list[IndexInfo]:
    """Unique indexes in order of definition; an integer primary key comes last, as in DM."""
    order = {id(index): number for number, index in enumerate(table.indexes)}
    return sorted(table.list_unique_keys(), key=lambda index: order.get(id(index), len(order)))


def _is_visible(index: IndexInfo, table: TableDef) -> bool:
    return all(table.find_column(part.name) is not None for part in index.columns)


def _list_parts(index: IndexInfo, table: TableDef) -> list[_KeyPart] | None:
    """The parts of an index; None if its values are not in the images."""
    parts = []
    for part in index.columns:
        column = table.find_column(part.name)
        if column is None or column.is_virtual:
            return None
        parts.append(_KeyPart(column, part.length, fold_name(column.name)))
    return parts
