"""Moves binlogs from the future out of the data directory of a stopped pump, by command (see `ceiling`).

First a copy goes to `aside/`. Then the record in its file is overwritten by a rollback of no transaction with the same
length, and the index is removed: the next start rebuilds it from the remaining records. Each step can be repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from binlake.base.localfiles import replace_file, sync_folder
from binlake.errors import Permanent, WireError
from binlake.pump_service.pump.directory import DataDirectory
from binlake.pump_service.pump.files import Files
from binlake.pump_service.pump.heads import parse_head
from binlake.pump_service.pump.record import HEAD, Pointer, RecordFrame, Walk, frame_of
from binlake.wire.binlog_pb2 import Binlog, Rollback

log = structlog.get_logger()

_EMPTY = Binlog(tp=Rollback, start_ts=0, commit_ts=0, ddl_job_id=0, ddl_schema_state=0).SerializeToString()
_PADDING = b"\xb2\x06"  # field 102, bytes: unknown to other readers, which skip it
_LENGTH_BYTES = 5


@dataclass(frozen=True)
class StoredRecord:
    """A record of the value log."""

    pointer: Pointer
    kind: str
    start_ts: int
    commit_ts: int
    payload: bytes

    @property
    def ts(self) -> int:
        """The greatest timestamp in the record."""
        return max(self.start_ts, self.commit_ts)


def count_set_aside(data_dir: Path) -> int:
    """How many binlogs have been moved out of this data directory so far."""
    return sum(1 for _ in (data_dir / "aside").glob("*.binlog"))


def find_above(data_dir: Path, ts: int) -> list[StoredRecord]:
    """The binlogs of a stopped pump that are above `ts`.

    Raises Permanent when the pump is running, and when all its binlogs are above `ts`: then PD's clock is wrong, not
    the binlogs.
    """
    directory = DataDirectory(data_dir)
    try:
        return _find_above(data_dir / "value", ts)
    finally:
        directory.close()


def set_aside(data_dir: Path, ts: int) -> list[StoredRecord]:
    """Move out the binlogs of a stopped pump above `ts`; durable on return. Raises as `find_above`, OSError."""
    directory = DataDirectory(data_dir)
    try:
        binlogs = _find_above(data_dir / "value", ts)
        if binlogs:
            _move_out(data_dir, binlogs)
    finally:
        directory.close()
    return binlogs


def _find_above(values: Path, ts: int) -> list[StoredRecord]:
    above, below = list[StoredRecord](), 0
    for path in _list_files(values):
        footer = _read_footer(path)
        if footer is not None and footer <= ts:
            below += 1
            continue
        for stored in _read_records(path):
            below += stored.ts <= ts
            above += [stored] if stored.ts > ts else []
    if above and not below:
        raise Permanent(
            "all binlogs in this data directory are above PD's clock: this PD did not give their timestamps",
            where={"data_dir": values.parent, "above": ts, "binlogs": len(above)},
            hint="the cluster was rebuilt or PD lost its state: start with an empty data directory",
        )
    return above


def _move_out(data_dir: Path, moved: list[StoredRecord]) -> None:
    aside = data_dir / "aside"
    aside.mkdir(exist_ok=True)
    sync_folder(data_dir)
    for one in moved:
        replace_file(aside / f"{one.pointer.fid:06d}-{one.pointer.offset}.binlog", [one.payload])
    # Before the files are changed: an index that knows these binlogs must not survive them.
    shutil.rmtree(data_dir / "kv", ignore_errors=True)
    sync_folder(data_dir)
    for path in _list_files(data_dir / "value"):
        in_file = [one for one in moved if one.pointer.fid == int(path.stem)]
        if in_file:
            _rewrite(path, in_file)
    for one in moved:
        log.warning(
            "binlog_set_aside_by_command", type=one.kind, start_ts=one.start_ts, commit_ts=one.commit_ts,
            file=f"{one.pointer.fid:06d}.vlog", offset=one.pointer.offset,
        )  # fmt: skip


def _rewrite(path: Path, binlogs: list[StoredRecord]) -> None:
    files, frame = Files(), _read_frame(path)
    with files.open(path) as file:
        for one in binlogs:
            offset = one.pointer.offset
            back = frame.decode_header(files.read(file, offset, frame.header_bytes), 0, offset).back
            payload = _build_empty_binlog(len(one.payload))
            files.overwrite(path, offset, frame.encode_header(payload, offset, back) + payload)
        if _read_footer(path) is not None:
            greatest = max((stored.ts for stored in _read_records(path)), default=0)
            end = files.read_size(file) - frame.footer_bytes
            files.overwrite(path, end, frame.encode_footer(greatest, end))
        files.sync(file)


def _build_empty_binlog(size: int) -> bytes:
    """A binlog of `size` bytes that changes nothing."""
    padding = size - len(_EMPTY) - len(_PADDING) - _LENGTH_BYTES
    if padding < 0:
        raise Permanent("a binlog is too short to be replaced", where={"bytes": size})
    # A varint of exactly five bytes, so that every size is possible.
    length = bytes((padding >> 7 * n & 0x7F) | (0x80 if n < _LENGTH_BYTES - 1 else 0) for n in range(_LENGTH_BYTES))
    return _EMPTY + _PADDING + length + bytes(padding)


def _list_files(values: Path) -> list[Path]:
    return sorted(values.glob("[0-9]*.vlog"), key=lambda path: int(path.stem))


def _read_frame(path: Path) -> RecordFrame:
    with path.open("rb") as file:
        frame = frame_of(int(path.stem), file.read(HEAD.size))
    # A file that has no head after a crash holds no record.
    return RecordFrame(int(path.stem)) if frame is None else frame


def _read_footer(path: Path) -> int | None:
    frame, size = _read_frame(path), path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - frame.footer_bytes))
        return frame.decode_footer(file.read(frame.footer_bytes), size)


def _read_records(path: Path) -> Iterator[StoredRecord]:
    frame = _read_frame(path)
    size = path.stat().st_size - (frame.footer_bytes if _read_footer(path) is not None and not frame.old else 0)
    with path.open("rb") as file:
        walk = Walk(frame, lambda at, count: os.pread(file.fileno(), count, at), frame.begin, size)
        for data, places in walk:
            for offset, begin, end in places:
                payload = data[begin:end]
                try:
                    head = parse_head(payload)
                except WireError:
                    continue  # not a binlog, so it has no timestamp
                yield StoredRecord(Pointer(frame.fid, offset), head.kind.value, head.start_ts, head.commit_ts, payload)
