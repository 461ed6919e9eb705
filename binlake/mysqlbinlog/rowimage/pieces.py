"""Rows of many columns as pieces in the order in which Arrow copies them: texts that stay where they are, and a sink of
numbers with a fixed stride per row. The result is entries of a protobuf field, preceded by their lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.mysqlbinlog.rowimage.lanes import Bools, Bytes, Ints, LaneBuffer, encode_varints, view_words

FRAME, NUMBER_ROOM, TEXT_ROOM = 8, 20, 40
"""Bytes in the sink: before a row, for a number, for a text's head."""

DATA, SINK = 0, -1
"""Sources of pieces: the rows' own bytes, values generated for a column (from 1 on), the sink."""


class Values(NamedTuple):
    """A column's values: where each begins, its length if logged, and which are NULL (None: none is)."""

    at: Ints
    size: Ints | None
    null: Bools | None


@dataclass
class PieceRows:
    """Rows of one shape in `data`, which has spare room at its end: where they begin and end; `words`: of `data`."""

    data: Bytes
    words: NDArray[Any]
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, data: bytes, starts: Ints, ends: Ints) -> PieceRows:
        """Rows in `data`, which ends with ROOM spare bytes."""
        array = np.frombuffer(data, np.uint8)
        return cls(array, view_words(array), starts, ends)

    def select_range(self, first: int, last: int) -> PieceRows:
        """The rows from `first` up to, but not including, `last`."""
        return PieceRows(self.data, self.words, self.starts[first:last], self.ends[first:last])


@dataclass
class Output:
    """What is written so far: `pieces`, in order, are (source, starts, ends); `offset`: of the row in the sink."""

    rows: PieceRows
    sink: LaneBuffer
    pieces: list[tuple[int, Ints, Ints]] = field(default_factory=list)
    made: list[bytes] = field(default_factory=list)
    offset: int = 0
    begun: Ints | None = None

    def begin(self, offset: int) -> None:
        """Begin a piece of the sink at `offset` of each row."""
        self.offset, self.begun = offset, self.sink.move(offset)

    def end(self) -> None:
        """End the piece of the sink at the current write position."""
        assert self.begun is not None
        self.pieces.append((SINK, self.begun, self.sink.at))

    def append_text(self, source: int, starts: Ints, ends: Ints) -> None:
        """End the piece of the sink, and append a piece of another source."""
        self.end()
        self.pieces.append((source, starts, ends))


def join_pieces(out: Output, tag: int) -> tuple[memoryview, Ints]:
    """(entries, ends): the rows as entries of a field `tag`, preceded by their lengths, and where each ends."""
    size: Ints = sum((end - start for _, start, end in out.pieces), np.zeros(1, np.int64))
    frames = encode_varints(size.view(np.uint64))
    bytes_of_frame = np.asarray(frames.size + 1, np.int64)
    # Directly before the first piece, so that both form one piece.
    source, first, end = out.pieces[0]
    out.sink.words[first - FRAME] = (frames.low << np.uint64(8) | np.uint64(tag)) << (
        (FRAME - bytes_of_frame) << 3
    ).view(np.uint64)
    out.pieces[0] = (source, first - bytes_of_frame, end)
    return _copy_pieces(out), (size + bytes_of_frame).cumsum()


def _copy_pieces(out: Output) -> memoryview:
    """All pieces, row by row: every second range between consecutive `bounds` is a piece."""
    count, low, high = len(out.rows.starts), int(out.rows.starts[0]), int(out.rows.ends[-1])
    blocks = [out.rows.data[low:high], *(np.frombuffer(made, np.uint8) for made in out.made), out.sink.data]
    bases = np.cumsum([0, *map(len, blocks)])
    bounds: list[Ints] = []
    order = np.empty((count, len(out.pieces)), np.int64)
    done = 0
    for source, base in zip((*range(len(blocks) - 1), SINK), bases, strict=False):
        indexes = [n for n, piece in enumerate(out.pieces) if piece[0] == source]
        if not indexes:
            continue
        block = np.empty((count, len(indexes), 2), np.int64)
        shift = int(base) - (low if source == DATA else 0)
        for column, index in enumerate(indexes):
            _, start, end = out.pieces[index]
            block[:, column, 0], block[:, column, 1] = start + shift, end + shift
            order[:, index] = np.arange(done + 2 * column, done + 2 * count * len(indexes), 2 * len(indexes))
        bounds.append(block.ravel())
        done += block.size
    offsets = np.concatenate(bounds)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.concatenate(blocks))]
    pieces = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    return memoryview(pieces.take(pa.array(order.ravel())).buffers()[2] or b"")


def put_text(out: Output, head: bytes, values: Values) -> None:
    """Append texts that are copied as they are, after `head` and their lengths."""
    assert values.size is not None
    out.sink.put_number(head + b"\x02", head + b"\x00", (values.size << 1).view(np.uint64), values.null)
    out.append_text(DATA, values.at, values.at + values.size)
