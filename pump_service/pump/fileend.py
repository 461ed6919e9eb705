"""Where a file of the value log ends that has no footer: found at a start, and made sure of (hazards R-01).

The rule: only what cannot have been acked is cut off. A write is acked after its sync, and the next one comes after
that and says where it began. So damage is a torn write, and the end, as long as no record behind it belongs to a later
write; otherwise the disk lost what it had, and that is named and never passed over. What is not known to be synced is
only in the page cache, maybe: it is written and synced again before anything is built on it.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import structlog

from binlake.errors import Permanent, WireError
from pump_service.pump.files import Files
from pump_service.pump.heads import head_of
from pump_service.pump.record import Frame, Pointer, Walk, next_record
from pump_service.pump.stopping import Asked, StartStopped, never

log = structlog.get_logger()

_PIECE = 4 << 20


class Known(NamedTuple):
    """The last record that the index has seen synced, and the greatest ts of its file up to there."""

    place: Pointer
    max_ts: int


class Unsealed(NamedTuple):
    """A file without a good footer. `last`: no record was ever written behind it. `until`: there were records at least
    up to there. `sync`: whether acks wait for the disk."""

    path: Path
    file: io.FileIO
    frame: Frame
    last: bool
    until: int
    sync: bool


class End(NamedTuple):
    """Where the records end, their greatest ts, whether a good footer follows, how much damage was accepted."""

    offset: int
    max_ts: int
    sealed: bool
    given_up: int


def damaged(frame: Frame, offset: int, reason: str) -> Permanent:
    """The error for bytes of the value log that were stored and are damaged or gone."""
    name = f"{frame.fid:06d}.vlog"
    return Permanent(
        f"the value log is damaged: {reason}",
        where=frame.place(offset),
        hint=f"restore value/{name} from a copy; or give up these binlogs with accept-damage = {name}@{offset}:"
        " later binlogs are served, and the damaged ones are missing downstream",
    )


def settle(
    files: Files, found: Unsealed, known: Known | None, accepted: Collection[Pointer], stop: Asked = never
) -> End:
    """Find the end of a file without a footer, cut what was never acked behind it, and make all before it durable.

    Raises Permanent where stored binlogs are lost, StartStopped (nothing was changed), OSError.
    """
    size, frame = files.size(found.file), found.frame
    at_head = known is not None and known.place.fid == frame.fid
    start = known.place.offset if known is not None and at_head else frame.begin
    walk = Walk(frame, lambda at, count: files.read(found.file, at, count), start, size, accepted)
    max_ts = max(known.max_ts if known is not None and at_head else 0, _walk_through(walk, stop))
    given_up = tell_passed_over(frame, walk)
    if at_head and walk.at == start:
        raise lost_end(Pointer(frame.fid, start), Pointer(frame.fid, size))
    footer = files.read(found.file, walk.at, frame.footer_bytes + 1)
    if frame.old and frame.decode_footer(footer, size) is not None and len(footer) == frame.footer_bytes:
        return End(walk.at, max_ts, True, given_up)
    _check_all_there(files, found, walk, size, accepted)
    if walk.at < size:
        log.warning("value_log_tail_cut", file=found.path.name, offset=walk.at, bytes=size - walk.at)
        files.truncate(found.file, walk.at)
    if found.sync:
        # What the index has seen synced is not touched: until the next sync nobody promises what is written over.
        proved = _end_of(files, found, start) if at_head else 0
        _write_again(files, found, max(walk.synced, proved), walk.at)
    return End(walk.at, max_ts, False, given_up)


def lost_end(head: Pointer, end: Pointer) -> Permanent:
    """The error for a value log that lacks what the index knows."""
    return Permanent(
        "the value log ends before the index does: stored binlogs are lost",
        where={"index_head": tuple(head), "value_log_end": tuple(end)},
        hint="restore the files of value/; or remove kv/ to start with the binlogs that are left",
    )


def tell_passed_over(frame: Frame, walk: Walk) -> int:
    """Log the damage that was accepted; how many stretches."""
    for offset, size in walk.passed_over:
        log.error("value_log_damage_accepted", file=f"{frame.fid:06d}.vlog", offset=offset, bytes=size)
    return len(walk.passed_over)


def _walk_through(walk: Walk, stop: Asked) -> int:
    greatest = 0
    for data, places in walk:
        if stop():
            raise StartStopped
        for _, begin, end in places:
            head = head_of(data[begin:end])
            greatest = max(greatest, head.start_ts, head.commit_ts)
    return greatest


def _check_all_there(files: Files, found: Unsealed, walk: Walk, size: int, accepted: Collection[Pointer]) -> None:
    frame = found.frame
    if Pointer(frame.fid, walk.at) in accepted:
        return
    if walk.at < found.until or (not found.last and size - walk.at > frame.footer_bytes):
        raise damaged(frame, walk.at, "a file that was written to its end is incomplete")
    if walk.at < size and _later_write(files, found, walk.at, size):
        raise damaged(frame, walk.at, "a record is incomplete, and later ones are complete")


def _later_write(files: Files, found: Unsealed, damage: int, size: int) -> bool:
    """Whether a record behind the damage was written after the damaged bytes had been synced."""
    at = damage + 1
    while True:
        try:
            record = next_record(found.frame, lambda at, count: files.read(found.file, at, count), at, size)
        except WireError:
            return True
        if record is None:
            return False
        if found.frame.old or record[1] > damage:
            return True
        at = record[0] + 1


def _end_of(files: Files, found: Unsealed, at: int) -> int:
    """Where the record that begins `at` ends."""
    frame = found.frame
    header = frame.header_at(files.read(found.file, at, frame.header_bytes), 0, at)
    return at + frame.header_bytes + header.length


def _write_again(files: Files, found: Unsealed, begin: int, end: int) -> None:
    for at in range(begin, end, _PIECE):
        files.overwrite(found.path, at, files.read(found.file, at, min(_PIECE, end - at)))
    files.sync(found.file)
