"""Read text that is not UTF-8 as MySQL's latin1, if `source.invalid-text` allows it.

Rule: every such value is counted, and a unique key must not contain one. `ö` as C3B6 and `ö` as F6 are two keys at the
source but one key at the target; they may come in different windows, so one row would silently replace the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Literal

from binlake.rows.codec.tabledecoder import TableDecoder, look_up_decoder
from binlake.rows.codec.values import NotText, ReadInvalid, format_bytes
from binlake.rows.schema.info import ColumnInfo, TableDef

InvalidText = Literal["refuse", "latin1"]
"""The handling of texts that are not UTF-8 (`source.invalid-text`)."""

_HOLES = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
_LETTERS = {byte: chr(byte) if byte in _HOLES else bytes((byte,)).decode("cp1252") for byte in range(256)}
"""MySQL's latin1 is windows-1252; bytes that windows-1252 leaves undefined are the control characters of that
number."""


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


def build_decoder_lookup(invalid_text: InvalidText, counted: Counter[str]) -> Callable[[TableDef], TableDecoder]:
    """A function definition -> decoder; `counted` counts the values that are read as latin1 (`build_latin1_reader`)."""
    if invalid_text == "refuse":
        return look_up_decoder
    return cache(lambda table: TableDecoder(table, build_latin1_reader(table, counted)))


def find_key_columns(table: TableDef) -> frozenset[str]:
    """Columns that a unique key depends on; if it includes a generated column, that may be any column."""
    columns = {column.name: column for column in table.all_columns}
    keys = {part.name for index in table.indexes if index.unique or index.primary for part in index.columns}
    if any(columns[name].is_generated for name in keys):
        return frozenset(columns)
    return frozenset(keys)
