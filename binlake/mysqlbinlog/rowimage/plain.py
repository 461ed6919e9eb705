"""Converts the rows of an event to TiDB's one by one: the reference, which supports every type and reports errors.

An insert is the handle and then the columns, an update all columns before and after, a delete all columns before
(tidb-binlog 1.11). The handle of a row without an integer key is its row number in the transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from binlake.errors import SourceRefused, WireError
from binlake.mysqlbinlog.charsets import build_text_writer
from binlake.mysqlbinlog.model import RowKind, RowsEvent
from binlake.mysqlbinlog.rowimage.jsonbinary import apply_diffs, convert_to_tidb_json, decode_json, read_packed
from binlake.mysqlbinlog.rowimage.numbers import decode_float, number_reader
from binlake.mysqlbinlog.rowimage.shape import ImageShape, LoggedColumn, Shape
from binlake.rows.codec import datum as d
from binlake.rows.codec.jsons import encode_json, write_json
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name

WriteDatum = Callable[[bytes], bytes]
"""Converts a value as the log has it, without its length, to TiDB's datum."""
_NULL = b"\x00"
_ERRORS = (IndexError, ValueError, KeyError, TypeError, OverflowError, OSError, struct.error)
SIGNED = frozenset((t.YEAR, t.DURATION))
"""Types besides integers that TiDB stores as signed numbers."""
_KNOWN_WRITERS = 1024
_NO_DOCUMENTS: Mapping[int, bytes] = {}


class _Writers(NamedTuple):
    """By image: (column, its id as a datum, writer of its values) of each column; `handle`: reader of the key."""

    images: tuple[tuple[tuple[LoggedColumn, bytes, WriteDatum], ...], ...]
    handle: Callable[[bytes], int] | None


def encode_rows(event: RowsEvent, shape: Shape, first_number: int) -> list[bytes]:
    """The rows of `event` in TiDB's old row format; `first_number`: number of the first one in its transaction.

    Raises WireError naming the table, and the row's number in the event, for damaged rows, SourceRefused for bytes that
    are no text.
    """
    rows: list[bytes] = []
    number = 0
    try:
        for number, datums in enumerate(_read_rows(event, shape)):
            rows.append(_encode_row(shape, datums, first_number + number))
        return rows
    except SourceRefused as error:
        error.where.setdefault("table", _name_table(event))
        raise
    except _ERRORS as error:
        what = "it is cut short" if isinstance(error, (IndexError, struct.error)) else str(error)
        raise WireError(
            f"a row of kind {event.kind.value} cannot be read: {what}",
            where={"table": _name_table(event), "row": len(rows)},
        ) from error


def find_changed_columns(event: RowsEvent, shape: Shape) -> set[str]:
    """The folded names of the columns that differ between the images of some row of an UPDATE.

    Raises as `encode_rows`.
    """
    names = {column.info.id: fold_name(column.info.name) for image in shape.images for column in image.columns}
    changed: set[str] = set()
    try:
        for row in _read_rows(event, shape):
            before, after = (dict(image) for image in row.images)
            changed.update(names[column] for column, datum in after.items() if before.get(column) != datum)
    except SourceRefused as error:
        error.where.setdefault("table", _name_table(event))
        raise
    except _ERRORS as error:
        raise WireError("a row of an UPDATE cannot be read", where={"table": _name_table(event)}) from error
    return changed


def _name_table(event: RowsEvent) -> str:
    return f"{event.table.db}.{event.table.table}"


def build_datum_writer(column: LoggedColumn) -> WriteDatum:
    """The writer of a column's values. Raises SchemaError for a charset that cannot be read."""
    layout, info = column.layout, column.info
    if info.tp == t.JSON:
        return _build_json_writer(layout.tp == t.JSON)
    if info.tp in t.STRINGS:
        return _build_string_writer(column)
    if info.tp in (t.FLOAT, t.DOUBLE):
        return lambda raw: d.write_float(decode_float(raw))
    if info.tp == t.NEWDECIMAL:
        head = bytes((d.DECIMAL, layout.first, layout.second))
        return lambda raw: head + raw
    read = number_reader(layout, info.unsigned)
    signed = info.tp in SIGNED or (info.tp in t.INTEGERS and not info.unsigned)
    return (lambda raw: d.write_int(read(raw))) if signed else (lambda raw: d.write_uint(read(raw)))


def _build_json_writer(binary: bool) -> WriteDatum:
    if binary:
        return lambda raw: b"\x0a" + convert_to_tidb_json(raw)
    return lambda raw: b"\x0a" + write_json(raw.decode())


def _build_string_writer(column: LoggedColumn) -> WriteDatum:
    info = column.info
    if info.is_binary:
        # Trailing zeros of BINARY are not logged.
        width = max(info.flen, 0) if info.tp == t.STRING else 0
        return lambda raw: d.write_bytes(raw.ljust(width, b"\0"))
    return build_text_writer(info, replaced_in=column.replaced_in)


@lru_cache(_KNOWN_WRITERS)
def _build_writers(shape: Shape) -> _Writers:
    images = tuple(
        tuple((column, d.write_int(column.info.id), build_datum_writer(column)) for column in image.columns)
        for image in shape.images
    )
    key = next((c for c in shape.images[0].columns if c.info is shape.handle), None)
    return _Writers(images, number_reader(key.layout, key.info.unsigned) if key else None)


class _Row(NamedTuple):
    """(id, datum) pairs of each image, and the key of the first one."""

    images: list[list[tuple[int, bytes]]]
    key: int | None


def _encode_row(shape: Shape, row: _Row, number: int) -> bytes:
    if shape.kind is not RowKind.INSERT:
        return b"".join(pair for image in row.images for _, pair in image)
    if row.key is None:
        return d.write_int(number) + b"".join(pair for _, pair in row.images[0])
    # The handle of an unsigned key is a signed number.
    handle = row.key - (1 << 64) if row.key >> 63 > 0 else row.key
    key_id = shape.handle.id if shape.handle else 0
    return d.write_int(handle) + (b"".join(pair for column, pair in row.images[0] if column != key_id) or _NULL)


def _read_rows(event: RowsEvent, shape: Shape) -> Iterator[_Row]:
    data, pos, writers = event.rows, 0, _build_writers(shape)
    partial = event.kind is RowKind.PARTIAL_UPDATE
    while pos < len(data):
        before, pos = _read_values(data, pos, shape.images[0])
        images, key = [_encode_pairs(before, writers, 0)], _read_key(before, shape, writers)
        if shape.is_update:
            differing, pos = _read_differing_columns(data, pos, shape) if partial else (0, pos)
            after, pos = _read_values(data, pos, shape.images[1])
            images.append(_encode_pairs(after, writers, 1, _apply_json_diffs(before, after, shape, differing)))
        yield _Row(images, key)


def _read_key(values: list[bytes | None], shape: Shape, writers: _Writers) -> int | None:
    if writers.handle is None:
        return None
    raw = next(v for v, column in zip(values, shape.images[0].columns, strict=True) if column.info is shape.handle)
    if raw is None:
        raise ValueError("its primary key is NULL")
    return writers.handle(raw)


def _encode_pairs(
    values: list[bytes | None], writers: _Writers, image: int, documents: Mapping[int, bytes] = _NO_DOCUMENTS
) -> list[tuple[int, bytes]]:
    return [
        (column.info.id, column_id + (_NULL if raw is None else documents.get(column.info.id) or write(raw)))
        for raw, (column, column_id, write) in zip(values, writers.images[image], strict=True)
        if column.is_written
    ]


def _read_values(data: bytes, pos: int, image: ImageShape) -> tuple[list[bytes | None], int]:
    """The values of an image as the log has them (None: NULL), and the position after them."""
    nulls = int.from_bytes(d.take(data, pos, image.null_bytes)[0], "little")
    pos += image.null_bytes
    values: list[bytes | None] = []
    for index, column in enumerate(image.columns):
        if nulls >> index & 1:
            values.append(None)
            continue
        size, prefix = column.layout.size, column.layout.prefix
        if prefix:
            head, pos = d.take(data, pos, prefix)
            size = int.from_bytes(head, "little")
        raw, pos = d.take(data, pos, size)
        values.append(raw)
    return values, pos


def _read_differing_columns(data: bytes, pos: int, shape: Shape) -> tuple[int, int]:
    """A bit for each JSON column that contains differences, and the position of the image."""
    options, pos = read_packed(data, pos)
    if not options & 1:
        return 0, pos
    bits, pos = d.take(data, pos, (shape.json_columns + 7) // 8)
    return int.from_bytes(bits, "little"), pos


def _apply_json_diffs(
    before: list[bytes | None], after: list[bytes | None], shape: Shape, differing: int
) -> dict[int, bytes]:
    """By column id, the datums of the documents for which `after` contains differences."""
    if not differing:
        return {}
    old = {c.info.id: raw for raw, c in zip(before, shape.images[0].columns, strict=True)}
    return {
        c.info.id: b"\x0a" + encode_json(apply_diffs(decode_json(old[c.info.id] or b""), raw))
        for raw, c in zip(after, shape.images[1].columns, strict=True)
        if raw is not None and c.json_place >= 0 and differing >> c.json_place & 1
    }
