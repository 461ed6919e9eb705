"""Reads the few fields of a serialised Binlog that a pump needs, without parsing or copying the rest (tidb-binlog 1.2).

A payload is *plain* when it is exactly what Go writes for the fields we know: fields 1 to 8 in order, each once, the
five that Go always emits present, nothing else. If both payloads are plain, the completed C is C up to its field 4,
followed by P after that field.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from binlake.common.varint import read_uvarint
from binlake.errors import WireError
from binlake.pump_service.pump.ranges import read_heads
from binlake.pump_service.pump.record import Pointer, Stretch
from binlake.pump_service.pump.sorter import EntryKind, SorterEntry
from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite, Rollback
from binlake.wire.build import emit_always

PROOF = b"\xa8\x06\x01"
"""The end of an R that this pump wrote after the rollback was proved: field 101 = 1; other readers ignore it."""

_LARGE_BYTES = 64 << 10  # bytes; protobuf's parser is faster than Python for payloads smaller than this
_VARINT, _BYTES = 0, 2
_TYPES = {1: _VARINT, 2: _VARINT, 3: _VARINT, 4: _BYTES, 5: _BYTES, 6: _BYTES, 7: _VARINT, 8: _VARINT}
_ALWAYS = frozenset((1, 2, 3, 7, 8))
_MAX_STATE = (1 << 31) - 1
KINDS = {int(Prewrite): EntryKind.PREWRITE, int(Commit): EntryKind.COMMIT, int(Rollback): EntryKind.ROLLBACK}


class Head(NamedTuple):
    """The fields that index and sorter need of a binlog; `key` is the prewrite key of a P."""

    kind: EntryKind
    start_ts: int
    commit_ts: int
    key: bytes


# Head(...) without the Python-level __new__ of a NamedTuple: this runs for each binlog.
_new_head = partial(tuple.__new__, Head)
# So are these, for each of a hundred million records that a start may read.
_new_entry, _new_pointer = partial(tuple.__new__, SorterEntry), partial(tuple.__new__, Pointer)
_FAKE, _OTHER, _PREWRITE, _ROLLBACK = EntryKind.FAKE, EntryKind.OTHER, EntryKind.PREWRITE, EntryKind.ROLLBACK


class PayloadLayout(NamedTuple):
    """The offsets of a plain payload's parts: `tp`, both ts, `key` = field 4, `cut` = the byte after it."""

    tp: int
    start_ts: int
    commit_ts: int
    key: bytes
    cut: int


def parse_binlog(payload: bytes) -> Binlog:
    """The binlog in `payload`. Raises WireError."""
    try:
        return Binlog.FromString(bytes(payload))
    except DecodeError as error:
        raise WireError("the payload is not a binlog", where={"bytes": len(payload), "reason": error}) from None


def parse_head(payload: bytes) -> Head:
    """The head of a stored payload. Raises WireError."""
    layout = parse_layout(payload) if len(payload) > _LARGE_BYTES else None
    if layout is not None:
        return _build_head(layout.tp, layout.start_ts, layout.commit_ts, layout.key, payload)
    binlog = parse_binlog(payload)
    return _build_head(binlog.tp, binlog.start_ts, binlog.commit_ts, binlog.prewrite_key, payload)


def normalise(payload: bytes) -> tuple[Head, bytes]:
    """The head of a payload that just arrived, and its bytes in the form that Go writes. Raises WireError."""
    layout = parse_layout(payload) if len(payload) > _LARGE_BYTES else None
    if layout is not None:
        return _build_head(layout.tp, layout.start_ts, layout.commit_ts, layout.key, payload), payload
    binlog = parse_binlog(payload)
    head = _build_head(binlog.tp, binlog.start_ts, binlog.commit_ts, binlog.prewrite_key, payload)
    return head, binlog.SerializeToString() if emit_always(binlog) else payload


def parse_layout(payload: bytes) -> PayloadLayout | None:
    """The layout of `payload`, which may be a view; None when it is not plain."""
    values: dict[int, int] = {}
    key, cut, at, last = b"", 0, 0, 0
    try:
        while at < len(payload):
            number, kind = payload[at] >> 3, payload[at] & 7
            if number <= last or _TYPES.get(number) != kind:
                return None
            begin = at + 1
            value, at = read_uvarint(payload, begin)
            if at - begin > 1 and not payload[at - 1]:
                return None  # longer than the form that Go writes
            if kind == _BYTES:
                key = bytes(payload[at : at + value]) if number == 4 else key
                at += value
            values[number], last = value, number
            cut = at if number <= 4 else cut
    except (IndexError, ValueError):
        return None
    if at != len(payload) or not values.keys() >= _ALWAYS or values[1] not in KINDS or values[8] > _MAX_STATE:
        return None
    return PayloadLayout(values[1], _to_signed(values[2]), _to_signed(values[3]), key, cut)


def complete(commit: bytes, prewrite: bytes) -> bytes:
    """C with prewrite_value, ddl_query, ddl_job_id and ddl_schema_state of its P, replacing C's own (MISSION S0-14).

    Unknown fields of P are copied, too (S1-03).
    """
    first, second = parse_layout(commit), parse_layout(prewrite)
    if first is not None and second is not None:
        return b"".join((commit[: first.cut], memoryview(prewrite)[second.cut :]))
    return _complete_parsed(parse_binlog(commit), parse_binlog(prewrite)).SerializeToString()


def parse_entry(pointer: Pointer, payload: bytes) -> SorterEntry:
    """The entry of a record read back from the value log. Raises WireError."""
    head = parse_head(payload)
    return SorterEntry(head.kind, head.start_ts, head.commit_ts, pointer, head.key)


def parse_entries(fid: int, stretch: Stretch) -> list[SorterEntry]:
    """The entries of records read back from file `fid`, whose crc has been checked. Raises WireError."""
    data, places = stretch
    entries = list[SorterEntry]()
    add, kinds = entries.append, KINDS
    for (plain, tp, start_ts, commit_ts, key, cut), (offset, begin, end) in zip(
        read_heads(data, places), places, strict=True
    ):
        pointer = _new_pointer((fid, offset))
        if not plain or start_ts == commit_ts:
            add(parse_entry(pointer, data[begin:end]))
        elif tp:
            add(_new_entry((kinds[tp], start_ts, commit_ts, pointer, b"")))
        elif data[key + 1] < 0x80:  # the length of an ordinary key fits into one byte
            add(_new_entry((_PREWRITE, start_ts, commit_ts, pointer, data[key + 2 : cut])))
        else:
            add(parse_entry(pointer, data[begin:end]))
    return entries


def _complete_parsed(commit: Binlog, prewrite: Binlog) -> Binlog:
    for name in ("prewrite_value", "ddl_query"):
        if prewrite.HasField(name):
            setattr(commit, name, getattr(prewrite, name))
        else:
            commit.ClearField(name)
    commit.ddl_job_id = prewrite.ddl_job_id
    commit.ddl_schema_state = prewrite.ddl_schema_state
    for field in Binlog.DESCRIPTOR.fields:
        prewrite.ClearField(field.name)
    commit.MergeFromString(prewrite.SerializeToString())  # only unknown fields are left
    return commit


def _build_head(tp: int, start_ts: int, commit_ts: int, key: bytes, payload: bytes) -> Head:
    if start_ts == commit_ts and start_ts:
        return _new_head((_FAKE, start_ts, commit_ts, b""))
    kind = KINDS.get(tp, _OTHER)
    if kind is _PREWRITE:
        return _new_head((kind, start_ts, commit_ts, key))
    if kind is _ROLLBACK and payload[-len(PROOF) :] == PROOF:
        kind = EntryKind.PROVEN_ROLLBACK
    return _new_head((kind, start_ts, commit_ts, b""))


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
