"""Encodes many rows of one shape at once, column by column, to the same bytes as `plain.py`.

Rows are written as pieces: numbers go into a buffer with a fixed stride (`lanes.Sink`), texts that are UTF-8 stay where
they are, and Arrow copies all pieces in order. Other values are encoded by the plain writer, one by one. The caller
falls back to the plain encoder for rows that cannot be encoded this way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from binlake.mysqlbinlog.charsets import build_utf8_writer, has_ascii
from binlake.mysqlbinlog.model import RowKind
from binlake.mysqlbinlog.rowimage.lanes import (
    FRAME,
    NUMBER_ROOM,
    TEXT_ROOM,
    Bools,
    Bytes,
    Ints,
    LaneBuffer,
    Output,
    PieceRows,
    Values,
    encode_zigzag,
    join_pieces,
    put_text,
)
from binlake.mysqlbinlog.rowimage.numbers import LaneReader, build_lane_reader, encode_comparable_floats
from binlake.mysqlbinlog.rowimage.plain import SIGNED, WriteDatum, build_datum_writer
from binlake.mysqlbinlog.rowimage.shape import LoggedColumn, Shape
from binlake.rows.codec import datum as d
from binlake.rows.schema import mysqltypes as t

MOST_COLUMN_ID = 1 << 20
"""Column ids below this leave room for a flag and a DECIMAL's layout in a word."""
_KNOWN_PLANS = 256


class CutShort(Exception):
    """Rows do not end where their columns do."""


_Writer = Callable[[Output, Values], None]


class _Column(NamedTuple):
    """How a column of an image is written; `room`: the most bytes that it takes in the sink; `cuts`: a text, which is
    a separate piece."""

    number: int
    write: _Writer
    room: int
    cuts: bool


class _Plan(NamedTuple):
    """The written columns of each image, the index and reader of the key, and the stride of the sink."""

    images: tuple[tuple[_Column, ...], ...]
    key: tuple[int, LaneReader] | None
    stride: int


def encode_together(shape: Shape, rows: PieceRows, numbers: Ints, tag: int) -> tuple[memoryview, Ints]:
    """(entries, ends): `rows` as entries of a field `tag`, preceded by their lengths, and where each ends.

    `numbers`: of the rows in their transactions. Raises CutShort, or what the plain writers raise.
    """
    plan = _plan_of(shape)
    values = _read_values(shape, rows)
    out = Output(rows, LaneBuffer(len(rows.starts), plan.stride))
    out.begin(FRAME)
    if shape.kind is RowKind.INSERT:
        _put_handle(out, plan, values[0], numbers)
    for columns, image_values in zip(plan.images, values, strict=True):
        for column in columns:
            column.write(out, image_values[column.number])
            if column.cuts:
                out.begin(out.offset + column.room)
            else:
                out.offset += column.room
    out.end()
    return join_pieces(out, tag)


def _put_handle(out: Output, plan: _Plan, values: list[Values], numbers: Ints) -> None:
    if plan.key:
        index, read = plan.key
        if values[index].null is not None:
            raise CutShort("a key is NULL")
        numbers = read(out.rows.words, values[index].at)
    out.sink.put_number(b"\x08", b"\x00", encode_zigzag(numbers), None)
    out.offset += NUMBER_ROOM
    if not plan.images[0]:
        # A row with nothing but its handle.
        out.sink.put(np.uint64(0), 1)


def _read_values(shape: Shape, rows: PieceRows) -> list[list[Values]]:
    """By image, the values of each column. Raises CutShort."""
    at, images = rows.starts, []
    for image in shape.images:
        nulls = _read_nulls(rows.data, at, len(image.columns))
        at = at + image.null_bytes
        column_values: list[Values] = []
        for column, null in zip(image.columns, nulls, strict=True):
            layout, size = column.layout, None
            step: Any = layout.size
            value_at = at
            if layout.prefix:
                size = (rows.words[at] & np.uint64((1 << 8 * layout.prefix) - 1)).view(np.int64)
                size = size if null is None else np.where(null, 0, size)
                value_at = at + layout.prefix if null is None else np.where(null, at, at + layout.prefix)
                step = size + layout.prefix
            column_values.append(Values(value_at, size, null))
            at = at + (step if null is None else np.where(null, 0, step))
        images.append(column_values)
    if not np.array_equal(at, rows.ends):
        raise CutShort("rows do not end where their columns do")
    return images


def _read_nulls(data: Bytes, at: Ints, columns: int) -> list[Bools | None]:
    masks: list[Bools | None] = []
    for byte in range(0, columns, 8):
        bits = data[at + byte // 8]
        any_null = int(np.bitwise_or.reduce(bits))
        masks += [(bits & 1 << n) != 0 if any_null >> n & 1 else None for n in range(min(8, columns - byte))]
    return masks


@lru_cache(_KNOWN_PLANS)
def _plan_of(shape: Shape) -> _Plan:
    key = None
    images = []
    for image in shape.images:
        columns = []
        for index, column in enumerate(image.columns):
            if column.info is shape.handle:
                reader = build_lane_reader(column.layout, column.info.unsigned)
                assert reader is not None
                key = (index, reader)
                if shape.kind is RowKind.INSERT:
                    continue
            if column.is_written:
                columns.append(_build_column(index, column))
        images.append(tuple(columns))
    stride = FRAME + 2 * NUMBER_ROOM + sum(column.room for columns in images for column in columns)
    return _Plan(tuple(images), key, stride + TEXT_ROOM)


def _build_column(index: int, column: LoggedColumn) -> _Column:
    info, layout = column.info, column.layout
    head = d.write_int(info.id)
    if info.tp == t.NEWDECIMAL:
        return _Column(index, _build_decimal_writer(head, column), len(head) + 3 + layout.size + 8, False)
    if info.tp in (t.FLOAT, t.DOUBLE):
        return _Column(index, _build_float_writer(head, layout.size), NUMBER_ROOM, False)
    if info.tp in t.STRINGS or info.tp == t.JSON:
        return _Column(index, _build_text_writer(head, column), TEXT_ROOM, True)
    signed = info.tp in SIGNED or (info.tp in t.INTEGERS and not info.unsigned)
    read = build_lane_reader(layout, info.unsigned)
    if read is None:
        return _Column(index, _build_plain_value_writer(head, column), TEXT_ROOM, True)
    return _Column(index, _number_writer(head, read, signed), NUMBER_ROOM, False)


def _number_writer(head: bytes, read: LaneReader, signed: bool) -> _Writer:
    full, null_head = head + (b"\x08" if signed else b"\x09"), head + b"\x00"

    def write(out: Output, values: Values) -> None:
        numbers = read(out.rows.words, values.at)
        if values.null is not None:
            numbers = np.where(values.null, 0, numbers)
        out.sink.put_number(full, null_head, encode_zigzag(numbers) if signed else numbers.view(np.uint64), values.null)

    return write


def _build_float_writer(head: bytes, size: int) -> _Writer:
    full, null_head = head + b"\x05", head + b"\x00"

    def write(out: Output, values: Values) -> None:
        word = encode_comparable_floats(out.rows.words, values.at, size)
        out.sink.put_words(full, null_head, [word], 8, values.null)

    return write


def _build_decimal_writer(head: bytes, column: LoggedColumn) -> _Writer:
    layout = column.layout
    full, null_head = head + bytes((d.DECIMAL, layout.first, layout.second)), head + b"\x00"

    def write(out: Output, values: Values) -> None:
        words = [out.rows.words[values.at + n] for n in range(0, layout.size, 8)]
        out.sink.put_words(full, null_head, words, layout.size, values.null)

    return write


def _build_text_writer(head: bytes, column: LoggedColumn) -> _Writer:
    info = column.info
    made = _build_plain_value_writer(head, column)

    def direct(out: Output, values: Values) -> None:
        put_text(out, head, values)

    if info.tp == t.JSON:
        return made
    if info.is_binary:
        return _build_binary_writer(info.flen, direct, made) if info.tp == t.STRING else direct
    if build_utf8_writer(info.charset) is None:
        return direct
    return _build_ascii_writer(direct, made) if has_ascii(info.charset) else made


def _build_plain_value_writer(head: bytes, column: LoggedColumn) -> _Writer:
    """A writer for values that the plain writer encodes."""
    write_datum = build_datum_writer(column)
    size = column.layout.size
    word = np.uint64(int.from_bytes(head, "little"))

    def write(out: Output, values: Values) -> None:
        made = _write_datums(write_datum, out.rows.data, values, size)
        ends = np.fromiter(map(len, made), np.int64, len(made)).cumsum()
        out.made.append(b"".join(made))
        out.sink.put(word, len(head))
        out.append_text(len(out.made), np.concatenate((np.zeros(1, np.int64), ends[:-1])), ends)

    return write


def _write_datums(write_datum: WriteDatum, data: Bytes, values: Values, size: int) -> list[bytes]:
    ends = values.at + (size if values.size is None else values.size)
    low = int(values.at[0])
    block = data[low : int(ends[-1])].tobytes()
    spans = zip((values.at - low).tolist(), (ends - low).tolist(), strict=True)
    if values.null is None:
        return [write_datum(block[start:end]) for start, end in spans]
    nulls = values.null.tolist()
    return [b"\x00" if null else write_datum(block[start:end]) for null, (start, end) in zip(nulls, spans, strict=True)]


def _build_binary_writer(width: int, direct: _Writer, made: _Writer) -> _Writer:
    """A writer for BINARY, whose trailing zeros are not logged."""

    def write(out: Output, values: Values) -> None:
        assert values.size is not None
        whole = values.size == width
        if values.null is not None:
            whole |= values.null
        (direct if whole.all() else made)(out, values)

    return write


def _build_ascii_writer(direct: _Writer, made: _Writer) -> _Writer:
    """A writer for texts that already are UTF-8 if all of them are ASCII."""

    def write(out: Output, values: Values) -> None:
        (direct if _is_ascii(out.rows.data, values) else made)(out, values)

    return write


def _is_ascii(data: Bytes, values: Values) -> bool:
    assert values.size is not None
    bounds = np.stack((values.at, values.at + values.size), 1).ravel()
    pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    texts = pieces.take(pa.array(np.arange(0, len(bounds), 2))).buffers()[2]
    return texts is None or not len(texts) or bool(np.frombuffer(texts, np.uint8).max() < 0x80)
