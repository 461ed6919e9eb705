"""What land needs of a binlog besides its rows: timestamps, schema version, and whether it is a DDL (S0-14, S0-19).

Binlogs of row changes, as Go writes them, are read column by column, many at once; protobuf reads all others: DDL and
damaged ones. A large binlog is read while its bytes come in pieces: everything else than what Go writes for a
transaction of row changes is not plain, and is left to a reader that has the whole binlog. Rows are skipped, not read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from binlake.rows.codec.lanes import Bools, Ints, Lanes
from binlake.wire import binlog_pb2

_MOST_TABLES = 16
"""A binlog with more mutations than this is left to protobuf."""
_TP, _START_TS, _COMMIT_TS, _KEY, _VALUE, _JOB_ID, _STATE = 0x08, 0x10, 0x18, 0x22, 0x2A, 0x38, 0x40
_VERSION, _MUTATION = 0x08, 0x12
_TP_BYTE, _START_TS_BYTE, _COMMIT_TS_BYTE, _KEY_BYTE, _VALUE_BYTE = b"\x08", b"\x10", b"\x18", b"\x22", b"\x2a"
_VERSION_BYTE, _MUTATION_BYTE = b"\x08", b"\x12"
_NO_DDL = b"\x38\x00\x40\x00"
_Reading = Generator[None, bytes, None]


class Envelopes(NamedTuple):
    """One value per binlog; `query` holds the DDL text by the binlog's number. A damaged binlog has schema version
    0."""

    version: Ints
    job_id: Ints
    state: Ints
    query: dict[int, str]


def read_envelopes(binlogs: pa.BinaryArray) -> Envelopes:
    """The envelopes of many binlogs. Damage below the list of mutations is not checked for."""
    lanes = Lanes.of(binlogs)
    walk = _Walk(lanes, lanes.starts, lanes.ends)
    version, state = walk.read_versions()
    job_id, query = np.zeros(len(lanes), np.int64), dict[int, str]()
    for row in np.flatnonzero(~walk.good).tolist():
        binlog, own_version = parse_binlog(lanes.read_row(row))
        version[row], job_id[row], state[row] = own_version or 0, binlog.ddl_job_id, binlog.ddl_schema_state
        if binlog.ddl_job_id > 0:
            query[row] = binlog.ddl_query.decode("utf-8", "replace")
    return Envelopes(version, job_id, state, query)


def parse_binlog(payload: bytes | memoryview) -> tuple[binlog_pb2.Binlog, int | None]:
    """The binlog and its schema version, None if it is damaged.

    A damaged binlog lands unchanged, and merge reports it: there the configured list of transactions to ignore can let
    it pass. If land refused it, it would also block every later window.
    """
    binlog = binlog_pb2.Binlog()
    try:
        binlog.ParseFromString(bytes(payload))
        return binlog, binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value).schema_version
    except DecodeError:
        return binlog, None


class _Walk:
    """Walks all binlogs in parallel, field by field; `good` becomes False for a binlog with an unexpected field."""

    def __init__(self, lanes: Lanes, starts: Ints, ends: Ints) -> None:
        self._lanes, self._at, self._ends = lanes, starts, ends
        self.good: Bools = np.ones(len(starts), np.bool_)

    def read_versions(self) -> tuple[Ints, Ints]:
        """The schema version and the DDL schema state of each binlog."""
        self._skip_tag(_TP)
        self._read_byte(0x7F)
        self._read_number(_START_TS)
        self._read_number(_COMMIT_TS)
        keyed = np.flatnonzero(self._lanes.read_bytes(self._at) == _KEY)
        inner = self._select(keyed)
        inner._skip(_KEY)
        self._at = self._at.copy()
        self._at[keyed], self.good[keyed] = inner._at, self.good[keyed] & inner.good
        begin, end = self._skip(_VALUE)
        self._skip_tag(_JOB_ID)
        self._read_byte(0)
        self._skip_tag(_STATE)
        state = self._read_byte(0x7F)
        self.good &= self._at == self._ends
        value = _Walk(self._lanes, begin, end)
        version = value._read_number(_VERSION)
        value._skip_mutations()
        self.good &= value.good
        return version, state

    def _skip_mutations(self) -> None:
        which = np.flatnonzero(self.good & (self._at < self._ends))
        rest = self._select(which)
        for _ in range(_MOST_TABLES):
            if not which.size:
                return
            rest._skip(_MUTATION)
            self.good[which[~rest.good]] = False
            more = np.flatnonzero(rest.good & (rest._at < rest._ends))
            which, rest = which[more], rest._select(more)
        self.good[which] = False

    def _select(self, which: Ints) -> _Walk:
        return _Walk(self._lanes, self._at[which], self._ends[which])

    def _skip_tag(self, tag: int) -> None:
        self.good &= (self._lanes.read_bytes(self._at) == tag) & (self._at < self._ends)
        self._at = np.minimum(self._at + 1, self._ends)

    def _read_byte(self, most: int) -> Ints:
        value = self._lanes.read_bytes(self._at).astype(np.int64)
        self.good &= (value <= most) & (self._at < self._ends)
        self._at = np.minimum(self._at + 1, self._ends)
        return value

    def _read_number(self, tag: int) -> Ints:
        self._skip_tag(tag)
        values, after, fine = self._lanes.read_uvarints(self._at)
        self.good &= fine & (after <= self._ends)
        self._at = np.minimum(after, self._ends)
        return values.view(np.int64)

    def _skip(self, tag: int) -> tuple[Ints, Ints]:
        """Skip a field of bytes; returns the positions at which its bytes begin and end."""
        size, begin = self._read_number(tag), self._at
        self.good &= (size >= 0) & (size <= self._ends - begin)
        self._at = begin + np.where(self.good, size, 0)
        return begin, self._at


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
        yield from self._expect(_TP_BYTE)
        yield from self._number()
        yield from self._expect(_START_TS_BYTE)
        self.start_ts = yield from self._number()
        yield from self._expect(_COMMIT_TS_BYTE)
        self.commit_ts = yield from self._number()
        tag = yield from self._take(1)
        if tag == _KEY_BYTE:
            yield from self._skip()
            tag = yield from self._take(1)
        if tag != _VALUE_BYTE:
            raise _NotPlain
        yield from self._read_value()
        yield from self._expect(_NO_DDL)
        if self._at != self.size:
            raise _NotPlain

    def _read_value(self) -> _Reading:
        size = yield from self._number()
        end = self._at + size
        begin = self._at
        yield from self._expect(_VERSION_BYTE)
        self.version = yield from self._number()
        self.value = begin, end
        while self._at < end:
            yield from self._expect(_MUTATION_BYTE)
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
