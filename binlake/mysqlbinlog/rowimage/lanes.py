"""Many numbers at once between the log's bytes and TiDB's, as words of 8 bytes, and the pieces that rows consist of.

A written word may extend past its piece: what comes next is written later, and each piece has room after it. Pieces are
in the order in which Arrow copies them: texts that stay where they are, and a sink of numbers with a fixed stride per
row. The result is entries of a protobuf field, preceded by their lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Uints = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

ROOM = 48
"""Spare bytes after what is read or written word by word: the longest DECIMAL plus one word."""
_EACH, _SEVENS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_LOW_56 = np.uint64((1 << 56) - 1)
# Groups of 7 bits move apart by halves: 28 bits, then 14, then 7; each from the size on that needs it.
_HALVES = tuple(
    (least, np.uint64(low), np.uint64(high), np.uint64(shift))
    for least, low, high, shift in (
        (1 << 28, 0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
        (1 << 14, 0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (1 << 7, 0x007F007F007F007F, 0x3F803F803F803F80, 1),
    )
)
FRAME, NUMBER_ROOM, TEXT_ROOM = 8, 20, 40
"""Bytes in the sink: before a row, for a number, for a text's head."""
DATA, SINK = 0, -1
"""Sources of pieces: the rows' own bytes, values generated for a column (from 1 on), the sink."""


def view_words(data: Bytes) -> NDArray[Any]:
    """The 8 bytes from each offset on, little endian, as numbers that can be read and written."""
    return np.ndarray(len(data) - 7, "<u8", data, strides=(1,))


class Varints(NamedTuple):
    """LEB128 numbers: their first 8 bytes, the next two (None if no number has them), their sizes; `most`: the largest
    size."""

    low: Uints
    high: Uints | None
    size: Ints | int
    most: int


def encode_varints(values: Uints) -> Varints:
    """The unsigned LEB128 form of each number."""
    top = int(values.max())
    if top < 0x80:
        return Varints(values, None, 1, 1)
    spread: Uints = values & _LOW_56
    for least, low, high, shift in _HALVES:
        if top >= least:
            spread = (spread & low) | ((spread & high) << shift)
    filled = spread | spread >> np.uint64(8)
    filled |= filled >> np.uint64(16)
    filled |= filled >> np.uint64(32)
    # The highest bit of each byte that is not above the number's last one.
    marks = (filled + _SEVENS) & _EACH
    size: Ints = np.bitwise_count(marks | np.uint64(0x80)).astype(np.int64)
    low_word = spread | marks >> np.uint64(8)
    if top >> 56 == 0:
        return Varints(low_word, None, size, (top.bit_length() + 6) // 7)
    rest = values >> np.uint64(56)
    long = rest > 0
    tenth = rest >> np.uint64(7)
    low_word = np.where(long, spread | _EACH, low_word)
    high_word = (rest & np.uint64(0x7F)) | tenth << np.uint64(7) | tenth << np.uint64(8)
    return Varints(low_word, high_word, np.where(long, 9 + tenth.view(np.int64), size), 10)


def encode_zigzag(values: Ints) -> Uints:
    """Zigzag-encode signed numbers: numbers of small magnitude become small unsigned ones."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


class LaneBuffer:
    """Rows of pieces in one buffer, with a fixed stride; `at`: where the next piece of each row is written."""

    def __init__(self, rows: int, stride: int) -> None:
        self.data: Bytes = np.empty(rows * stride + ROOM, np.uint8)
        self.words = view_words(self.data)
        self.first: Ints = np.arange(0, rows * stride, stride, dtype=np.int64)
        self.at = self.first

    def move(self, offset: int) -> Ints:
        """Continue writing at `offset` of each row; returns the positions in the buffer."""
        self.at = self.first + offset
        return self.at

    def put(self, word: Any, size: Ints | int) -> None:
        """Write a word to each row, of which `size` bytes count."""
        self.words[self.at] = word
        self.at = self.at + size

    def put_number(self, head: bytes, null_head: bytes, values: Uints, null: Bools | None) -> None:
        """Write `head` and a LEB128 number to each row; `null_head`, of the same length, alone where `null`."""
        numbers, width = encode_varints(values), len(head)
        first = self._choose_heads(head, null_head, null)
        if numbers.high is None and numbers.most + width <= 8:
            self.words[self.at] = first | numbers.low << np.uint64(8 * width)
        else:
            self.words[self.at] = first
            self.words[self.at + width] = numbers.low
            if numbers.high is not None:
                self.words[self.at + (width + 8)] = numbers.high
        size = numbers.size + width
        self.at = self.at + (size if null is None else np.where(null, width, size))

    def put_words(self, head: bytes, null_head: bytes, words: list[Uints], size: int, null: Bools | None) -> None:
        """Write `head` and `size` bytes, which `words` hold, to each row; `null_head` alone where `null`."""
        self.words[self.at] = self._choose_heads(head, null_head.ljust(len(head), b"\0"), null)
        for n, word in enumerate(words):
            self.words[self.at + (len(head) + 8 * n)] = word
        whole = len(head) + size
        self.at = self.at + (whole if null is None else np.where(null, len(null_head), whole))

    def _choose_heads(self, head: bytes, null_head: bytes, null: Bools | None) -> Any:
        word = np.uint64(int.from_bytes(head, "little"))
        return word if null is None else np.where(null, np.uint64(int.from_bytes(null_head, "little")), word)


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
