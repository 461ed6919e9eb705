"""Encodes columns for several protocols: values in other forms, JSON, and protobuf. NULL stays NULL.

Values are a column's canonical texts of `mutation`. Rules: no Python object per value. Text between quotes of JSON is
converted byte by byte with one table, as by Go's encoder, so that no character can break a message. A field's parts of
protobuf are joined by `join_parts`; runs of rows become one value each.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import Array, ByteTable, Ints, Part, encode_varints, join_parts, map_distinct
from binlake.rows.codec.values import show_member_text
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_SECONDS = len("2024-02-29 12:34:56")


def convert_texts_to_zone(column: ColumnInfo, texts: Array, zone: str) -> Array:
    """Convert texts of a TIMESTAMP from UTC to `zone`. The zero date and texts of other types do not change."""
    if column.tp != t.TIMESTAMP or zone == "UTC":
        return texts
    zero = pc.starts_with(texts, "0000-00-00")
    real = pc.if_else(zero, pa.scalar(None, pa.string()), texts)
    moments = pc.assume_timezone(pc.cast(real, pa.timestamp("us")), "UTC").cast(pa.timestamp("us", zone))
    local = pc.cast(pc.local_timestamp(moments), pa.string())
    return pc.coalesce(pc.utf8_slice_codeunits(local, 0, _SECONDS + (column.fsp + 1 if column.fsp else 0)), texts)


def convert_images_to_zone(columns: Sequence[ColumnInfo], images: Mapping[str, Array], zone: str) -> dict[str, Array]:
    """The texts of `columns`, with TIMESTAMPs in `zone`."""
    return {column.name: convert_texts_to_zone(column, images[column.name], zone) for column in columns}


def compute_member_numbers(column: ColumnInfo, texts: Array) -> Array:
    """As uint64: for an ENUM the member's number, from 1; for a SET one bit per member; 0 for no member."""
    places = {member: place for place, member in reversed(list(enumerate(column.elems)))}

    def compute_number(text: str) -> int:
        if column.tp == t.ENUM:
            return places.get(text, -1) + 1
        return sum({1 << places[member] for member in text.split(",") if member in places}) if text else 0

    return map_distinct(texts, compute_number, pa.uint64())


def show_members(column: ColumnInfo, texts: Array) -> Array:
    """The texts of `column` as servers show them."""
    if not column.has_empty_member:
        return texts
    return map_distinct(texts, partial(show_member_text, column), pa.string())


def parse_bits(texts: Array) -> Array:
    """The hex texts of a BIT as uint64."""
    return map_distinct(texts, lambda text: int(text, 16), pa.uint64())


def remove_exponents(texts: Array) -> Array:
    """Texts of FLOAT and DOUBLE without an exponent."""
    if not pc.any(pc.match_substring(texts, "e")).as_py():
        return texts
    return map_distinct(texts, lambda text: format(Decimal(text), "f"), pa.string())


_SHORT = {0x22: rb"\"", 0x5C: rb"\\", 0x0A: rb"\n", 0x0D: rb"\r", 0x09: rb"\t"}
_CONTROL = {byte: b"\\u%04x" % byte for byte in range(0x20)}
_HTML = {byte: b"\\u%04x" % byte for byte in b"<>&"}
_ESCAPES = {**_CONTROL, **_HTML, **_SHORT}
_TEXT = ByteTable(_ESCAPES)
_LATIN1 = ByteTable({**_ESCAPES, **{byte: chr(byte).encode() for byte in range(0x80, 0x100)}})
_GO_SHORT = {0x07: "a", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t", 0x0B: "v", 0x22: '"', 0x5C: "\\"}
_UNSEEN = [*range(0x20), *range(0x7F, 0x100)]
_GO_QUOTED = ByteTable(
    {byte: rb"\x%02x" % byte for byte in _UNSEEN} | {byte: f"\\{text}".encode() for byte, text in _GO_SHORT.items()}
)


def encode_json(value: object) -> bytes:
    """One value as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def as_binary(texts: Array) -> Array:
    """The texts as UTF-8."""
    return pc.cast(texts, pa.binary())


def escape_texts(texts: Array) -> Array:
    """The texts, escaped for use between quotes."""
    return _TEXT.apply(as_binary(texts))


def escape_latin1(values: Array) -> Array:
    """Bytes as characters of ISO 8859-1, escaped for use between quotes."""
    return _LATIN1.apply(values)


def escape_go_quoted(values: Array) -> Array:
    r"""Bytes as Go's `strconv.Quote` writes them (`\x89PNG`), escaped for use between quotes."""
    return _TEXT.apply(_GO_QUOTED.apply(values))


def encode_base64(values: Array) -> Array:
    """Bytes in base64."""
    # Encoded one by one, as neither Arrow nor numpy has base64.
    made = (None if value is None else b2a_base64(value, newline=False) for value in values.to_pylist())
    return pa.array(made, pa.binary())


def encode_strings(values: Array) -> list[Part]:
    """Escaped texts (such as of `escape_texts`) with quotes; NULL becomes null."""
    return put_nulls([b'"', values, b'"'], values)


def encode_numbers(values: Array) -> list[Part]:
    """Numbers, or texts of numbers, unchanged; NULL becomes null."""
    texts = as_binary(pc.cast(values, pa.string()))
    return put_nulls([texts], texts)


def put_nulls(parts: Sequence[Part], like: Array) -> list[Part]:
    """`parts`, with null where `like` is NULL."""
    return [pc.fill_null(join_parts(parts), b"null")] if like.null_count else list(parts)


def encode_object(members: Iterable[tuple[str, Sequence[Part]]]) -> list[Part]:
    """A JSON object with these members."""
    parts: list[Part] = [b"{"]
    for number, (name, value) in enumerate(members):
        parts += [b"," if number else b"", encode_json(name), b":", *value]
    return [*parts, b"}"]


VARINT, FIXED64, BYTES = 0, 1, 2
"""Protobuf's wire types."""
TRANSACTION = "transaction"
"""The `op` of a message that is a whole transaction."""


def encode_tag(number: int, wire: int) -> bytes:
    """The tag before a field."""
    return bytes([number << 3 | wire])


def encode_number_field(number: int, values: npt.NDArray[np.uint64]) -> list[Part]:
    """A field of varints."""
    return [encode_tag(number, VARINT), encode_varints(values)]


def encode_field(number: int, values: Array) -> list[Part]:
    """A field of bytes, texts or messages."""
    return [encode_tag(number, BYTES), encode_varints(measure_lengths(values).astype(np.uint64)), values]


def measure_lengths(values: Array) -> Ints:
    """The length of each value in bytes; no value may be NULL."""
    lengths: Ints = np.asarray(pc.binary_length(values)).astype(np.int64)
    return lengths


def find_run_ends(*columns: npt.NDArray[Any]) -> Ints:
    """The last row of each run of rows with equal values in all `columns`."""
    changes = [np.diff(column) != 0 for column in columns]
    return np.append(np.flatnonzero(np.logical_or.reduce(changes)), len(columns[0]) - 1)


def join_runs(values: Array, ends: Ints) -> Array:
    """Join the values of each run, which ends at one of `ends`, to one value."""
    bounds = np.concatenate([[0], ends + 1]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds), values), b"")


def join_transactions(messages: pa.Table, ends: Ints, values: Array) -> pa.Table:
    """The messages at `ends`, each for its whole transaction, with `values` and without table and key."""
    replaced = {"db": "", "table": "", "op": TRANSACTION, "key": None}
    # Drop the replaced columns first: `take` would copy all their values.
    others = messages.drop_columns([*replaced, "value"]).take(pa.array(ends))
    columns = {name: others.column(name) for name in others.column_names} | {"value": values}
    for name, value in replaced.items():
        columns[name] = pa.repeat(pa.scalar(value, messages.schema.field(name).type), len(others))
    return pa.table([columns[name] for name in messages.column_names], schema=messages.schema)
