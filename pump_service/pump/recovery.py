"""At a start, finds where a value-log file without a footer ends, and makes everything before that durable (hazards
R-01).

The rule: only bytes that cannot have been acked are cut off. A write is acked after its sync; the next write starts
after that and records where it began. So damage is a torn write and marks the end of the file, unless a record after
the damage belongs to a later write: then the disk lost stored data, which is reported and never skipped. Bytes that are
not known to be synced may be in the page cache only, so they are written and synced again before anything relies on
them.

A start may take minutes and can be stopped: everything acked is in the value log, and the next start continues.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import structlog

from binlake.errors import Permanent, Transient, WireError
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.heads import parse_head
from binlake.pump_service.pump.record import Pointer, RecordFrame, Walk, find_next_record

log = structlog.get_logger()

StopAsked = Callable[[], bool]
"""Returns whether the start must stop. Called often, so it must be cheap."""

_PIECE = 4 << 20


class StartStopped(Transient):
    """The pump was asked to stop while it started. This is not a fault, and nothing is running."""

    def __init__(self) -> None:
        super().__init__("the pump was asked to stop while it started", hint="start it again: it continues from there")


def never_stop() -> bool:
    """Never ask the start to stop."""
    return False


class KnownSynced(NamedTuple):
    """The last record that the index knows to be synced, and the greatest ts of its file up to that record."""

    place: Pointer
    max_ts: int


class UnsealedFile(NamedTuple):
    """A file without a valid footer. `last`: no later file has a record, so it may end in a torn write. `until`:
    records are known to have reached at least this offset. `sync`: whether acks wait for the disk."""

    path: Path
    file: io.FileIO
    frame: RecordFrame
    last: bool
    until: int
    sync: bool


class FileEnd(NamedTuple):
    """The end of the records, their greatest ts, whether a valid footer follows, and how many damaged parts were
    skipped."""

    offset: int
    max_ts: int
    sealed: bool
    given_up: int


def build_damage_error(frame: RecordFrame, offset: int, reason: str) -> Permanent:
    """The error for bytes of the value log that were stored and are now damaged or missing."""
    name = f"{frame.fid:06d}.vlog"
    return Permanent(
        f"the value log is damaged: {reason}",
        where=frame.build_where(offset),
        hint=f"restore value/{name} from a copy; or give up these binlogs with accept-damage = {name}@{offset}:"
        " later binlogs are served, and the damaged ones are missing downstream",
    )


def settle_end(
    files: Files,
    unsealed: UnsealedFile,
    known: KnownSynced | None,
    accepted: Collection[Pointer],
    stop: StopAsked = never_stop,
) -> FileEnd:
    """Find the end of a file without a footer, cut off unacked bytes after it, and make everything before it durable.

    Raises Permanent where stored binlogs are lost, StartStopped (nothing was changed), OSError.
    """
    size, frame = files.read_size(unsealed.file), unsealed.frame
    at_head = known is not None and known.place.fid == frame.fid
    start = known.place.offset if known is not None and at_head else frame.begin
    walk = Walk(frame, lambda at, count: files.read(unsealed.file, at, count), start, size, accepted)
    max_ts = max(known.max_ts if known is not None and at_head else 0, _read_greatest_ts(walk, stop))
    given_up = log_accepted_damage(frame, walk)
    if at_head and walk.at == start:
        raise build_lost_end_error(Pointer(frame.fid, start), Pointer(frame.fid, size))
    footer = files.read(unsealed.file, walk.at, frame.footer_bytes + 1)
    if frame.old and frame.decode_footer(footer, size) is not None and len(footer) == frame.footer_bytes:
        return FileEnd(walk.at, max_ts, True, given_up)
    _check_complete(files, unsealed, walk, size, accepted)
    if walk.at < size:
        log.warning("value_log_tail_cut", file=unsealed.path.name, offset=walk.at, bytes=size - walk.at)
        files.truncate(unsealed.file, walk.at)
    if unsealed.sync:
        # What the index knows to be synced is not rewritten: an overwritten block may be lost until the next sync.
        proved = _find_end_of_record(files, unsealed, start) if at_head else 0
        _rewrite(files, unsealed, max(walk.synced, proved), walk.at)
    return FileEnd(walk.at, max_ts, False, given_up)


def build_lost_end_error(head: Pointer, end: Pointer) -> Permanent:
    """The error for a value log that lacks records which the index knows."""
    return Permanent(
        "the value log ends before the index does: stored binlogs are lost",
        where={"index_head": tuple(head), "value_log_end": tuple(end)},
        hint="restore the files of value/; or remove kv/ to start with the binlogs that are left",
    )


def log_accepted_damage(frame: RecordFrame, walk: Walk) -> int:
    """Log the damage that the operator accepted; return the number of damaged stretches."""
    for offset, size in walk.passed_over:
        log.error("value_log_damage_accepted", file=f"{frame.fid:06d}.vlog", offset=offset, bytes=size)
    return len(walk.passed_over)


def _read_greatest_ts(walk: Walk, stop: StopAsked) -> int:
    greatest = 0
    for data, places in walk:
        if stop():
            raise StartStopped
        for _, begin, end in places:
            head = parse_head(data[begin:end])
            greatest = max(greatest, head.start_ts, head.commit_ts)
    return greatest


def _check_complete(files: Files, unsealed: UnsealedFile, walk: Walk, size: int, accepted: Collection[Pointer]) -> None:
    frame = unsealed.frame
    if Pointer(frame.fid, walk.at) in accepted:
        return
    if walk.at < unsealed.until or (not unsealed.last and size - walk.at > frame.footer_bytes):
        raise build_damage_error(frame, walk.at, "a file that was written to its end is incomplete")
    if walk.at < size and _has_later_write(files, unsealed, walk.at, size):
        raise build_damage_error(frame, walk.at, "a record is incomplete, and later ones are complete")


def _has_later_write(files: Files, unsealed: UnsealedFile, damage: int, size: int) -> bool:
    """Whether some record after the damage belongs to a write that began after the damaged bytes had been synced."""
    at = damage + 1
    while True:
        try:
            record = find_next_record(unsealed.frame, lambda at, count: files.read(unsealed.file, at, count), at, size)
        except WireError:
            return True
        if record is None:
            return False
        if unsealed.frame.old or record[1] > damage:
            return True
        at = record[0] + 1


def _find_end_of_record(files: Files, unsealed: UnsealedFile, at: int) -> int:
    """The end offset of the record that begins at offset `at`."""
    frame = unsealed.frame
    header = frame.decode_header(files.read(unsealed.file, at, frame.header_bytes), 0, at)
    return at + frame.header_bytes + header.length


def _rewrite(files: Files, unsealed: UnsealedFile, begin: int, end: int) -> None:
    for at in range(begin, end, _PIECE):
        files.overwrite(unsealed.path, at, files.read(unsealed.file, at, min(_PIECE, end - at)))
    files.sync(unsealed.file)
