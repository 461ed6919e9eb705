"""Converts columns to JSON values: texts are escaped as by Go's encoder, and rows are joined from parts.

Rule: text between quotes is converted byte by byte with one table, so that no character can break a message.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.arrowcolumns import Array, ByteTable, Part, join_parts

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
