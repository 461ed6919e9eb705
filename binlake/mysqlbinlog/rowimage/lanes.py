"""Converts many numbers at once between the log's bytes and TiDB's: gathered and scattered as words of 8 bytes.

A written word may extend past its piece: what comes next is written later, and each piece has room after it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
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
