"""The value log: an append-only set of files; `append` returns only after its bytes are on disk (invariant 1).

Only one thread at a time may call `append`; reads by pointer and scans may run at the same time. Rotation at 500 MiB is
the original's (tidb-binlog 2.2), the layout is Binlake's (record.py); the original's files are read, and only sealed.
The number of open files is bounded.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from errno import EMFILE, ENFILE, ENOSPC
from functools import partial
from pathlib import Path

import structlog

from binlake.errors import BinlakeError, LostRange, Permanent, Transient, WireError
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.record import HEAD, RECORD, Pointer, RecordFrame, Stretch, Walk, build_head, frame_of
from binlake.pump_service.pump.recovery import (
    KnownSynced,
    StopAsked,
    UnsealedFile,
    build_damage_error,
    log_accepted_damage,
    never_stop,
    settle_end,
)

log = structlog.get_logger()

SEGMENT_BYTES = 500 << 20  # tidb-binlog 2.2
SEAL_ON_CLOSE_BYTES = 50 << 10  # a smaller file stays open for the next start
_OPEN_FILES = 256
_FIRST_READ = 4096
_FAR_BACK = 1 << 31
_new_pointer = partial(tuple.__new__, Pointer)  # same as Pointer(...), without a call of Python code for each record
_JOIN_BYTES = 4 << 20  # a larger batch is written piece by piece instead of being copied


@dataclass(frozen=True)
class LogOptions:
    """`sync`: acks wait for the disk. `accepted`: damage that an operator gave up (`accept-damage`)."""

    segment_bytes: int = SEGMENT_BYTES
    sync: bool = True
    accepted: Collection[Pointer] = frozenset()


class ValueLog:
    """The files `NNNNNN.vlog` of one directory.

    `known`: the last record that is known to be synced; a start reads nothing before it. `given_up`: damaged stretches
    skipped so far, as configured. `stop`: whether to interrupt the opening (StartStopped). Raises LostRange for a
    pointer into a file that was removed, WireError for a damaged record, Transient when a batch could not be written
    and was undone or a file cannot be opened, Permanent once the disk has failed to sync, and if stored binlogs are
    lost or damaged.
    """

    def __init__(
        self,
        directory: Path,
        options: LogOptions = LogOptions(),
        *,
        files: Files | None = None,
        known: KnownSynced | None = None,
        stop: StopAsked = never_stop,
    ) -> None:
        self._directory = directory
        self._stop = stop
        self._options = options
        self._files = files or Files()
        self.failed = ""
        self._rotation_error = ""
        self._handles: dict[int, io.FileIO] = {}  # the least recently used first
        self._handles_lock = threading.Lock()
        self._max_ts: dict[int, int] = {}
        self._frames: dict[int, RecordFrame] = {}
        self._files.build_directory(directory)
        names = self._files.list_names(directory)
        # A killed process may have left a file name in the page cache only, and records in that file will count as
        # durable.
        self._files.sync_directory(directory)
        self._fids = sorted(int(name[:-5]) for name in names if name.endswith(".vlog") and name[:-5].isdecimal())
        self.given_up = 0
        self._end = 0
        try:
            self._open_files(known)
        except OSError as error:
            where = {"directory": directory, "reason": error}
            raise Transient("the value log cannot be opened", where=where, hint="check the disk") from error

    @property
    def end(self) -> Pointer:
        """The position of the next record; everything before it is on disk."""
        return Pointer(self._fids[-1], self._end)

    @property
    def max_ts(self) -> int:
        """The greatest start_ts or commit_ts in the log; 0 when it is empty."""
        return max(self._max_ts.values(), default=0)

    @property
    def error(self) -> str:
        """Why nothing can be written any more (`failed`), or no new file be created; empty = no problem."""
        return self.failed or self._rotation_error

    def look_up_max_ts(self, fid: int) -> int:
        """The greatest ts in file `fid` so far; 0 for a file that was removed."""
        return self._max_ts.get(fid, 0)

    def list_sizes(self) -> dict[int, int]:
        """The bytes of every file, the oldest first; of one that is being removed, 0."""
        sizes = {fid: _read_size(self._build_path(fid)) for fid in self._fids[:-1]}
        return {**sizes, self._fids[-1]: self._end}

    def list_old_files(self) -> list[tuple[int, int]]:
        """(fid, greatest ts) of every file but the current one, the oldest first."""
        return [(fid, self._max_ts[fid]) for fid in self._fids[:-1]]

    def compute_room_left(self) -> int:
        """Bytes until the current file reaches its limit; a batch should end there."""
        left = self._options.segment_bytes - self._end
        # no new file can be created, so this one grows, batch by batch
        return left if left > 0 else self._options.segment_bytes

    def append(self, payloads: Sequence[bytes], max_ts: int) -> list[Pointer]:
        """Write records in one write and one fdatasync; return their positions. `max_ts`: their greatest ts.

        Raises WireError for an empty payload, and writes nothing.
        """
        if self.failed:
            raise Permanent("the value log cannot be written", where={"reason": self.failed})
        fid, offset = self._fids[-1], self._end
        if not all(payloads):  # a length of 0 means that no record begins here: what follows could not be read
            raise WireError("a binlog without a byte cannot be stored", where={"file": self._build_path(fid).name})
        frame = self._frames[fid]
        # without a sync there is no proof
        write_begin = offset if self._options.sync else max(frame.begin, offset - _FAR_BACK)
        pointers: list[Pointer] = []
        pieces: list[bytes] = []
        for payload in payloads:
            pointers.append(_new_pointer((fid, offset)))
            pieces += (frame.encode_header(payload, offset, offset - write_begin), payload)
            offset += RECORD.size + len(payload)
        self._write(fid, pieces if offset - self._end > _JOIN_BYTES else [b"".join(pieces)], offset)
        self._max_ts[fid] = max(self._max_ts[fid], max_ts)
        if self._end >= self._options.segment_bytes:
            self._rotate()
        return pointers

    def read(self, pointer: Pointer) -> bytes:
        """The payload of the record at `pointer`, header and crc checked."""
        fid, offset = pointer
        frame, file = self.look_up_frame(fid), self._handle(fid)
        data = self._files.read(file, offset, _FIRST_READ)
        begin = frame.header_bytes
        length = frame.decode_header(data, 0, offset).length
        body = data[begin : begin + length]
        if len(body) < length and offset + begin + length <= self._files.read_size(file):
            body = self._files.read(file, offset + begin, length)
        frame.check(data[:begin], body, offset)
        return body

    def read_bytes(self, pointer: Pointer, size: int) -> bytes:
        """`size` raw bytes from `pointer` on, headers included; fewer at the end of the file."""
        return self._files.read(self._handle(pointer.fid), pointer.offset, size)

    def peek(self, pointer: Pointer, size: int) -> tuple[int, bytes]:
        """The unchecked payload length of the record at `pointer`, and its first bytes; 0: no record begins there."""
        frame = self.look_up_frame(pointer.fid)
        data = self.read_bytes(pointer, frame.header_bytes + size)
        return frame.decode_header(data, 0, pointer.offset).length, data[frame.header_bytes :]

    def holds(self, pointer: Pointer) -> bool:
        """Whether a whole record begins at `pointer`, or its file was collected; its crc is not checked."""
        if pointer.fid not in self._frames:
            return pointer.fid < self._fids[-1]
        length = self.peek(pointer, 0)[0]
        end = pointer.offset + self._frames[pointer.fid].header_bytes + length
        return bool(length) and end <= self._files.read_size(self._handle(pointer.fid))

    def look_up_frame(self, fid: int) -> RecordFrame:
        """How the records of file `fid` are framed."""
        frame = self._frames.get(fid)
        if frame is None:
            raise self._build_missing_error(fid)
        return frame

    def scan_from(self, pointer: Pointer, upto: Pointer | None = None) -> Iterator[tuple[Pointer, bytes]]:
        """Every record from `pointer` to before `upto` (default: the end), in log order. Raises as `scan_stretches`."""
        for fid, (data, places) in self.scan_stretches(pointer, upto):
            for offset, begin, end in places:
                yield Pointer(fid, offset), data[begin:end]

    def scan_stretches(self, pointer: Pointer, upto: Pointer | None = None) -> Iterator[tuple[int, Stretch]]:
        """Like `scan_from`, some MiB at once, each with its file. Raises Permanent at the first damage, OSError."""
        end = upto or self.end
        for fid in [fid for fid in self._fids if pointer.fid <= fid <= end.fid]:
            start = pointer.offset if fid == pointer.fid else 0
            for stretch in self._walk_file(fid, start, end.offset if fid == end.fid else None):
                yield fid, stretch

    def remove(self, fids: Iterable[int]) -> None:
        """Delete files, the oldest first; readers that have one open can finish. Raises OSError."""
        for fid in sorted(fids):
            if fid == self._fids[-1]:
                raise ValueError("the current file of the value log cannot be removed")
            self._files.remove(self._build_path(fid))
            with self._handles_lock:
                self._handles.pop(fid, None)
                self._fids = [kept for kept in self._fids if kept != fid]
                del self._max_ts[fid], self._frames[fid]
            # one at a time: no later file may disappear before an earlier one
            self._files.sync_directory(self._directory)

    def close(self) -> None:
        """If the current file is worth it (50 KiB) and can be sealed, seal it; close all files."""
        if not self.failed and self._end >= SEAL_ON_CLOSE_BYTES:
            try:
                self._seal(self._fids[-1])
            except BinlakeError as error:
                log.warning("value_log_not_sealed", file=self._build_path(self._fids[-1]).name, error=str(error))
        with self._handles_lock:
            self._handles.clear()  # each file closes when its last reader drops its handle

    def _build_path(self, fid: int) -> Path:
        return self._directory / f"{fid:06d}.vlog"

    def _handle(self, fid: int) -> io.FileIO:
        with self._handles_lock:
            file = self._handles.pop(fid, None) or self._open(fid)
            self._cache_handle(fid, file)
            return file

    def _open(self, fid: int) -> io.FileIO:
        try:
            return self._files.open(self._build_path(fid))
        except FileNotFoundError:
            raise self._build_missing_error(fid) from None
        except OSError as error:
            hint = "raise the limit of open files (ulimit -n)" if error.errno in (EMFILE, ENFILE) else "check the disk"
            where = {"file": self._build_path(fid).name, "reason": error}
            raise Transient("a file of the value log cannot be opened", where=where, hint=hint) from error

    def _build_missing_error(self, fid: int) -> LostRange:
        return LostRange("a file of the value log is missing", where={"file": self._build_path(fid).name})

    def _cache_handle(self, fid: int, file: io.FileIO) -> None:
        self._handles[fid] = file
        if len(self._handles) > _OPEN_FILES:
            self._handles.pop(next(iter(self._handles)))  # closes when its last reader drops it

    def _open_files(self, known: KnownSynced | None) -> None:
        next_fid = 0
        for fid in self._fids:
            frame = frame_of(fid, self._files.read(self._handle(fid), 0, HEAD.size))
            if frame is not None:
                self._frames[fid] = frame
            elif self._is_given_up(fid):
                next_fid = fid + 1
            elif fid != self._fids[-1] or self._files.read_size(self._handle(fid)) > HEAD.size:
                raise build_damage_error(RecordFrame(fid), 0, "the head of the file is incomplete")
        begun = [fid for fid in self._fids if fid in self._frames]
        self._fids = begun  # a last file without a head was being created when the last process ended
        sealed = [self._load_max_ts(at, known) for at in range(len(begun))]
        if sealed and not sealed[-1] and not self._frames[begun[-1]].old:
            return
        next_fid = max(next_fid, begun[-1] + 1 if begun else 0)
        if sealed and not sealed[-1]:
            # a file of the original without a record is replaced by one in Binlake's format
            next_fid = self._fids.pop()
        self._switch(next_fid, *self._create(next_fid))

    def _is_given_up(self, fid: int) -> bool:
        accepted = Pointer(fid, 0) in self._options.accepted
        if accepted:
            log.error("value_log_damage_accepted", file=self._build_path(fid).name, offset=0, bytes="all")
            self.given_up += 1
        return accepted

    def _load_max_ts(self, at: int, known: KnownSynced | None) -> bool:
        """Load the greatest ts of a file and repair what a crash left unfinished; return whether the file is sealed."""
        fid, after = self._fids[at], [self._frames[later] for later in self._fids[at + 1 :]]
        file, frame = self._handle(fid), self._frames[fid]
        size = self._files.read_size(file)
        last = not after or (len(after) == 1 and self._files.read_size(self._handle(after[0].fid)) <= after[0].begin)
        footer = self._files.read(file, max(0, size - frame.footer_bytes), frame.footer_bytes)
        max_ts = frame.decode_footer(footer, size)
        # in such a file the end of a payload may look like a footer
        if max_ts is not None and not (frame.old and last):
            self._max_ts[fid] = max_ts
            return True
        until = after[0].previous_end if after else 0
        unsealed = UnsealedFile(self._build_path(fid), file, frame, last, until, self._options.sync)
        end = settle_end(self._files, unsealed, known, self._options.accepted, self._stop)
        self._max_ts[fid], self._end, self.given_up = end.max_ts, end.offset, self.given_up + end.given_up
        if end.sealed or not (after or (frame.old and end.offset)):
            return end.sealed
        self._seal(fid)
        return True

    def _walk_file(self, fid: int, start: int, stop: int | None) -> Iterator[Stretch]:
        file, frame = self._handle(fid), self.look_up_frame(fid)
        size = self._files.read_size(file) if stop is None else stop
        end = size if stop is not None or frame.old else size - frame.footer_bytes
        walk = Walk(
            frame,
            lambda at, count: self._files.read(file, at, count),
            max(start, frame.begin),
            end,
            self._options.accepted,
        )
        yield from walk
        self.given_up += log_accepted_damage(frame, walk)
        rest = self._files.read(file, walk.at, frame.footer_bytes)
        if walk.at < end and not (frame.old and stop is None and frame.decode_footer(rest, size) is not None):
            raise build_damage_error(frame, walk.at, "a record is incomplete")

    def _write(self, fid: int, pieces: Sequence[bytes], end: int) -> None:
        file = self._handle(fid)
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[self._files.append(file, view) :]
        except OSError as error:
            self._undo_write(file, error)
        self._flush(file)
        self._end = end

    def _undo_write(self, file: io.FileIO, error: OSError) -> None:
        # Callers are told that nothing was stored, so nothing may stay in the file.
        try:
            self._files.truncate(file, self._end)
        except OSError as second:
            self.failed = f"write failed ({error}) and could not be undone ({second})"
            raise Permanent(self.failed) from second
        raise Transient("the value log could not be written", where={"reason": error}) from error

    def _flush(self, file: io.FileIO) -> None:
        if not self._options.sync:
            return
        try:
            self._files.sync(file)
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: a later success would prove nothing.
            self.failed = f"fdatasync failed: {error}"
            raise Permanent(self.failed, hint="replace the disk, then start the pump again") from error

    def _rotate(self) -> None:
        # Whatever fails here, the records are durable and acked as such; the next append tries to rotate again.
        fid = self._fids[-1]
        try:
            frame, file = self._create(fid + 1)
            self._seal(fid)  # this comes last: nothing may follow a footer
        except (BinlakeError, OSError) as error:
            self._rotation_error = f"no new file of the value log can be begun: {error}"
            log.error("value_log_rotation_failed", file=self._build_path(fid + 1).name, error=str(error))
        else:
            self._rotation_error = ""
            self._switch(fid + 1, frame, file)

    def _seal(self, fid: int) -> None:
        footer = self._frames[fid].encode_footer(self._max_ts[fid], self._end)
        self._write(fid, [footer], self._end + len(footer))

    def _create(self, fid: int) -> tuple[RecordFrame, io.FileIO]:
        """Create a file with its head and its name. An empty file that a failure or crash left is reused."""
        try:
            file = self._files.open(self._build_path(fid), create=True)
        except FileExistsError:
            file = self._files.open(self._build_path(fid))
            if self._files.read_size(file) > HEAD.size:
                raise
            self._files.truncate(file, 0)
        head, frame = build_head(fid, self._end)
        if self._files.append(file, head) != len(head):
            raise OSError(ENOSPC, "the head of a file was written only in part")
        self._files.sync(file)  # synced even if acks do not wait for syncs: without its head a file cannot be read
        self._files.sync_directory(self._directory)
        return frame, file

    def _switch(self, fid: int, frame: RecordFrame, file: io.FileIO) -> None:
        with self._handles_lock:  # a collection may remove old files from the list at the same time
            self._cache_handle(fid, file)
            self._frames[fid] = frame
            self._max_ts[fid] = 0
            self._end = frame.begin
            self._fids.append(fid)


def _read_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
