"""CSV as TiCDC's storage sink writes it: one line per row change (two for an update with its old row), all columns.

A line has operation (I, U, D), table, schema, then commit_ts and is-update if they are requested, then the columns.
Texts, times, decimals and bytes are quoted; numbers and NULL are not.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import Array, ByteTable, Part, join_parts, map_distinct
from binlake.config.protocols import CsvOptions
from binlake.feed.encoding import (
    as_binary,
    convert_texts_to_zone,
    encode_numbers,
    parse_bits,
    remove_exponents,
    show_members,
)
from binlake.feed.formats import DELETE, INSERT, UPDATE, Bodies, Changes, Images, RowFormat
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_WORDS = {INSERT: "I", UPDATE: "U", DELETE: "D"}
_NUMBERS = t.INTEGERS | {t.YEAR}


class CsvFormat(RowFormat):
    """The format CSV with `options`."""

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        # With old rows, every update is a deletion and an insertion anyway.
        self.splits_moves = not options.old_value
        quote = options.quote.encode()
        self._doubled = ByteTable({quote[0]: quote * 2}) if quote else None

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: values without keys. The file's writer adds the end of the last line."""
        columns = changes.table.row_columns
        if changes.op == UPDATE and self._options.old_value:
            old = self._encode_line(changes, "D", changes.select_before(columns))
            new = self._encode_line(changes, "I", changes.select_after(columns))
            values = join_parts([*old, self._options.terminator.encode(), *new])
        else:
            values = join_parts(list(self._encode_line(changes, _WORDS[changes.op], changes.select_last(columns))))
        return Bodies(pa.nulls(len(changes), pa.binary()), values)

    def _encode_line(self, changes: Changes, word: str, images: Images) -> Iterator[Part]:
        table, delimiter = changes.table, self._options.delimiter.encode()
        yield delimiter.join(self._quote_name(name) for name in (word, table.name, table.db))
        if self._options.commit_ts:
            yield delimiter
            yield from encode_numbers(changes.commit_ts)
        if self._options.old_value:
            yield delimiter + (b"true" if changes.op == UPDATE else b"false")
        for column in table.row_columns:
            yield delimiter
            yield pc.fill_null(self._encode_value(column, images[column.name]), self._options.null.encode())

    def _encode_value(self, column: ColumnInfo, texts: Array) -> Array:
        if column.tp == t.BIT:
            return as_binary(pc.cast(parse_bits(texts), pa.string()))
        if column.tp in (t.FLOAT, t.DOUBLE):
            return as_binary(remove_exponents(texts))
        if column.tp in _NUMBERS:
            return as_binary(texts)
        if column.is_binary:
            texts = map_distinct(texts, self._encode_bytes, pa.string())
        shown = convert_texts_to_zone(column, show_members(column, texts), self._options.time_zone)
        return self._quote_column(as_binary(shown))

    def _encode_bytes(self, text: str) -> str:
        return (
            text.lower() if self._options.binary == "hex" else b2a_base64(bytes.fromhex(text), newline=False).decode()
        )

    def _quote_name(self, name: str) -> bytes:
        return bytes(self._quote_column(pa.array([name.encode()], pa.binary()))[0].as_py())

    def _quote_column(self, values: Array) -> Array:
        quote = self._options.quote.encode()
        if self._doubled is not None:
            return join_parts([quote, self._doubled.apply(values), quote])
        delimiter = self._options.delimiter
        escapes = {"\\": r"\\", "\r": r"\r", "\n": r"\n", delimiter: "".join(f"\\{sign}" for sign in delimiter)}
        for text, escape in escapes.items():
            values = pc.replace_substring(values, text.encode(), escape.encode())
        return values
