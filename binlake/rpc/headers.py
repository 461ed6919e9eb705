"""Header blocks (HPACK, RFC 7541): a fast decoder with limits, and an encoder without state.

The static table and the Huffman code come from `hpack`. Its decoder takes three times as long for the headers of a Go
client's calls: known fields, and a grpc-timeout that differs each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from binlake.rpc.frames import Code, ConnectionFault

Field = tuple[bytes, bytes]

_STATIC: tuple[Field, ...] = tuple((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE)
_STATIC_COUNT = len(_STATIC)
_OVERHEAD = 32  # size of an entry in addition to its bytes (RFC 7541 4.1)
_MAX_INTEGER_BYTES = 6
_CACHED_STRINGS = 128  # per connection, of which there may be thousands
_CACHED_BYTES = 32  # in packed form


def encode(fields: Iterable[Field]) -> bytes:
    """A block of literals without indexing, which is valid whatever the peer's table contains."""
    return b"".join(b"\x00" + _encode_string(name) + _encode_string(value) for name, value in fields)


def _encode_string(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    out, length = bytearray(b"\x7f"), length - 127
    while length >= 128:
        out.append(length & 127 | 128)
        length >>= 7
    out.append(length)
    return bytes(out) + text


class HeaderDecoder:
    """Decodes the blocks of one connection, in order.

    `changes` increases with each change of the table; while it is the same, equal blocks mean equal fields.
    `list_bytes`: unpacked size of the last list. Raises ConnectionFault (COMPRESSION_ERROR) for a damaged block. A list
    longer than `max_list_bytes` is read to its end, so that the table stays in step, and returned as None.
    """

    def __init__(self, max_list_bytes: int, table_bytes: int = 4096) -> None:
        self.changes = self.list_bytes = 0
        self._max_list_bytes = max_list_bytes
        self._allowed = self._capacity = table_bytes
        self._size = 0
        self._entries: deque[Field] = deque()
        self._strings: dict[bytes, bytes] = {}

    def decode(self, block: bytes) -> list[Field] | None:
        """The fields of `block`; None if they have too many bytes."""
        try:
            return self._decode(block)
        except (IndexError, HPACKError) as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, f"damaged header block: {error}") from None

    def _decode(self, block: bytes) -> list[Field] | None:
        fields: list[Field] = []
        at, end, size = 0, len(block), 0
        while at < end:
            first = block[at]
            if first & 0x80:
                if first == 0xFF:
                    index, at = _decode_integer(block, at, 0x7F)
                else:
                    index, at = first & 0x7F, at + 1
                field = self._look_up_field(index)
            elif first & 0x60 == 0x20:
                at = self._resize(block, at, fields)
                continue
            else:
                field, at = self._decode_literal(block, at, first)
            size += len(field[0]) + len(field[1]) + _OVERHEAD
            if size <= self._max_list_bytes:
                fields.append(field)
        self.list_bytes = size
        return fields if size <= self._max_list_bytes else None

    def _look_up_field(self, index: int) -> Field:
        if index > _STATIC_COUNT:
            return self._entries[index - _STATIC_COUNT - 1]
        if index == 0:
            raise ConnectionFault(Code.COMPRESSION_ERROR, "header index 0")
        return _STATIC[index - 1]

    def _decode_literal(self, block: bytes, at: int, first: int) -> tuple[Field, int]:
        mask = 0x3F if first & 0x40 else 0x0F
        index, at = _decode_integer(block, at, mask)
        if index:
            name = self._look_up_field(index)[0]
        else:
            name, at = self._decode_text(block, at)
        value, at = self._decode_text(block, at)
        field = (name, value)
        if first & 0x40:
            self._add(field)
        return field, at

    def _decode_text(self, block: bytes, at: int) -> tuple[bytes, int]:
        huffman = block[at] & 0x80
        length, at = _decode_integer(block, at, 0x7F)
        end = at + length
        if end > len(block):
            raise ConnectionFault(Code.COMPRESSION_ERROR, "header block is cut off")
        text = block[at:end]
        return (self._decode_huffman(text) if huffman else text), end

    def _decode_huffman(self, text: bytes) -> bytes:
        known = self._strings.get(text)
        if known is None:
            known = bytes(decode_huffman(text))
            if len(self._strings) >= _CACHED_STRINGS:
                self._strings.clear()
            if len(text) <= _CACHED_BYTES:
                self._strings[text] = known
        return known

    def _resize(self, block: bytes, at: int, fields: list[Field]) -> int:
        capacity, at = _decode_integer(block, at, 0x1F)
        if fields or capacity > self._allowed:
            raise ConnectionFault(Code.COMPRESSION_ERROR, "table size update out of place or too large")
        self._capacity = capacity
        self.changes += 1
        self._evict()
        return at

    def _add(self, field: Field) -> None:
        self.changes += 1
        self._entries.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + _OVERHEAD
        if self._size > self._capacity:
            self._evict()

    def _evict(self) -> None:
        while self._size > self._capacity:
            name, value = self._entries.pop()
            self._size -= len(name) + len(value) + _OVERHEAD


def _decode_integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ConnectionFault(Code.COMPRESSION_ERROR, "header integer is too long")
