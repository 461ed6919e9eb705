"""Reads the fields around the row changes of a large binlog while its bytes come in pieces (S0-14, S0-19).

It accepts exactly what Go writes for a transaction of row changes; everything else is not plain, and is left to a
reader that has the whole binlog. Rows are skipped, not read.
"""

from __future__ import annotations

from collections.abc import Generator

_TP, _START_TS, _COMMIT_TS, _KEY, _VALUE = b"\x08", b"\x10", b"\x18", b"\x22", b"\x2a"
_VERSION, _MUTATION = b"\x08", b"\x12"
_NO_DDL = b"\x38\x00\x40\x00"
_Reading = Generator[None, bytes, None]


class _NotPlain(Exception):
    """A field is not where Go writes it."""


class LargeEnvelope:
    """The envelope of a binlog of `size` bytes, of which `position` have come.

    `start_ts`, `commit_ts`, the schema `version` and `value` (first byte and end of the prewrite value, offsets in the
    binlog) are known with the first piece, or are 0: then the binlog is not plain.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.position = 0
        self.start_ts = self.commit_ts = self.version = 0
        self.value = (0, 0)
        self._failed = self._ended = False
        self._piece, self._at = b"", 0
        self._steps = self._read_fields()
        next(self._steps)

    @property
    def is_plain(self) -> bool:
        """Whether all bytes have come, and are as expected."""
        return self._ended and not self._failed and self.position == self.size

    def add(self, piece: bytes) -> None:
        """Read the next bytes, which must not be empty."""
        begin, self.position = self.position, self.position + len(piece)
        self._piece = piece
        try:
            if not (self._failed or self._ended):
                self._steps.send(piece)
        except StopIteration:
            self._ended = True
        except _NotPlain:
            self._failed = True
        if not begin and not self.value[1]:
            self._failed = True
            self.start_ts = self.commit_ts = self.version = 0

    def _read_fields(self) -> _Reading:
        yield
        yield from self._expect(_TP)
        yield from self._number()
        yield from self._expect(_START_TS)
        self.start_ts = yield from self._number()
        yield from self._expect(_COMMIT_TS)
        self.commit_ts = yield from self._number()
        tag = yield from self._take(1)
        if tag == _KEY:
            yield from self._skip()
            tag = yield from self._take(1)
        if tag != _VALUE:
            raise _NotPlain
        yield from self._read_value()
        yield from self._expect(_NO_DDL)
        if self._at != self.size:
            raise _NotPlain

    def _read_value(self) -> _Reading:
        size = yield from self._number()
        end = self._at + size
        begin = self._at
        yield from self._expect(_VERSION)
        self.version = yield from self._number()
        self.value = begin, end
        while self._at < end:
            yield from self._expect(_MUTATION)
            yield from self._skip()
        if self._at != end or end > self.size:
            raise _NotPlain

    def _skip(self) -> _Reading:
        size = yield from self._number()
        self._at += size

    def _expect(self, wanted: bytes) -> _Reading:
        if (yield from self._take(len(wanted))) != wanted:
            raise _NotPlain

    def _number(self) -> Generator[None, bytes, int]:
        value = shift = 0
        while shift < 63:
            byte = (yield from self._take(1))[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise _NotPlain

    def _take(self, count: int) -> Generator[None, bytes, bytes]:
        taken = b""
        if self._at + count > self.size:
            raise _NotPlain
        while len(taken) < count:
            if self._at >= self.position:
                yield
                continue
            at = self._at - (self.position - len(self._piece))
            more = self._piece[at : at + count - len(taken)]
            taken += more
            self._at += len(more)
        return taken
