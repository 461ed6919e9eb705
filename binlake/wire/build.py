"""Build binlogs whose bytes equal those of the original: fields that Go always emits are set even if they are zero.

Byte vectors: tidb-binlog 1.6. Fake binlogs: tidb-binlog 2.7 (recognised by start_ts == commit_ts, not by type).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from binlake.common.spool import MessagePiece
from binlake.common.varint import write_uvarint
from binlake.wire import binlog_pb2 as pb

LARGE_BYTES = 1 << 20
"""Bytes of a binlog above which copies of it are avoided."""
_ALWAYS = ("tp", "start_ts", "commit_ts", "ddl_job_id", "ddl_schema_state")


def build_prewrite(
    start_ts: int,
    prewrite_key: bytes,
    prewrite_value: bytes = b"",
    *,
    ddl_query: bytes = b"",
    ddl_job_id: int = 0,
    ddl_schema_state: int = 0,
) -> pb.Binlog:
    """The P binlog of a transaction (`prewrite_value`: a serialised PrewriteValue) or of a DDL job."""
    binlog = pb.Binlog(tp=pb.Prewrite, start_ts=start_ts, commit_ts=0, prewrite_key=prewrite_key)
    binlog.ddl_job_id = ddl_job_id
    binlog.ddl_schema_state = ddl_schema_state
    if prewrite_value:
        binlog.prewrite_value = prewrite_value
    if ddl_query:
        binlog.ddl_query = ddl_query
    return binlog


@dataclass(frozen=True, slots=True)
class LargePrewrite:
    """The P binlog of a large transaction, as the `pieces` of its bytes."""

    start_ts: int
    pieces: tuple[MessagePiece, ...]


def build_large_prewrite(start_ts: int, prewrite_key: bytes, prewrite_value: Sequence[MessagePiece]) -> LargePrewrite:
    """As `build_prewrite` of a transaction, whose value is given in pieces and never joined."""
    before = pb.Binlog(tp=pb.Prewrite, start_ts=start_ts, commit_ts=0, prewrite_key=prewrite_key).SerializeToString()
    after = pb.Binlog(ddl_job_id=0, ddl_schema_state=0).SerializeToString()
    return LargePrewrite(start_ts, (before + _head_of_value(sum(map(len, prewrite_value))), *prewrite_value, after))


def build_commit(of: pb.Binlog, commit_ts: int) -> pb.Binlog:
    """The C binlog of the prewrite `of`: its fields without prewrite_value, as TiDB sends it (tidb-binlog 1.11)."""
    return _build_end(of, pb.Commit, commit_ts)


def build_rollback(of: pb.Binlog) -> pb.Binlog:
    """The R binlog of the prewrite `of`; its commit_ts is 0, as TiDB sends it."""
    return _build_end(of, pb.Rollback, 0)


def build_fake(ts: int) -> pb.Binlog:
    """A fake binlog at `ts`: it moves a watermark and has no content."""
    return pb.Binlog(tp=pb.Rollback, start_ts=ts, commit_ts=ts, ddl_job_id=0, ddl_schema_state=0)


def serialize_in_pieces(binlog: pb.Binlog) -> tuple[MessagePiece, ...]:
    """The bytes of `binlog`; a large prewrite value is a piece of its own, which protobuf would copy twice more.

    Raises EncodeError above 2 GiB.
    """
    if binlog.ByteSize() < LARGE_BYTES:
        return (binlog.SerializeToString(),)
    value = binlog.prewrite_value
    before, after = pb.Binlog(), pb.Binlog()
    for field in pb.Binlog.DESCRIPTOR.fields:
        if field.number != pb.Binlog.PREWRITE_VALUE_FIELD_NUMBER and binlog.HasField(field.name):
            part = before if field.number < pb.Binlog.PREWRITE_VALUE_FIELD_NUMBER else after
            setattr(part, field.name, getattr(binlog, field.name))
    head = before.SerializeToString() + _head_of_value(len(value))
    pieces = head, value, after.SerializeToString()
    # Without its unknown fields it would be shorter.
    return pieces if sum(map(len, pieces)) == binlog.ByteSize() else (binlog.SerializeToString(),)


def _head_of_value(size: int) -> bytes:
    return b"\x2a" + write_uvarint(size)


def emit_always(binlog: pb.Binlog) -> bool:
    """Set in place the fields that Go always emits; returns whether any was missing."""
    given, missing = binlog.HasField, False
    for name in _ALWAYS:
        if not given(name):
            setattr(binlog, name, 0)
            missing = True
    return missing


def _build_end(of: pb.Binlog, tp: pb.BinlogType, commit_ts: int) -> pb.Binlog:
    ended = pb.Binlog(tp=tp, start_ts=of.start_ts, commit_ts=commit_ts)
    ended.ddl_job_id = of.ddl_job_id
    ended.ddl_schema_state = of.ddl_schema_state
    if of.prewrite_key:
        ended.prewrite_key = of.prewrite_key
    if of.ddl_query:
        ended.ddl_query = of.ddl_query
    return ended
