"""The value log: an append-only set of files; `append` returns only after its bytes are on disk (invariant 1).

One writer at a time calls `append`; reads by pointer and scans may run beside it. Layout, rotation at 500 MiB and
the footer rules are the original's (tidb-binlog 2.2). However many files there are, only so many are open at once.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator, Sequence
from errno import EMFILE, ENFILE
from pathlib import Path

import structlog

from binlake.errors import BinlakeError, LostRange, Permanent, Transient
from pump_service.pump.files import Files
from pump_service.pump.heads import head_of
from pump_service.pump.record import (
    FOOTER,
    HEADER,
    MAGIC,
    Pointer,
    check_payload,
    decode_footer,
    encode_footer,
    encode_header,
    scan,
)

log = structlog.get_logger()

SEGMENT_BYTES = 500 << 20  # tidb-binlog 2.2
SEAL_ON_CLOSE_BYTES = 50 << 10  # a smaller file stays open for the next start
_OPEN_FILES = 256
_FIRST_READ = 4096
_JOIN_BYTES = 4 << 20  # a larger batch is written piece by piece instead of being copied
_START = Pointer(0, 0)


class ValueLog:
    """The files `NNNNNN.vlog` of one directory.

    `known`: a place and the greatest ts of its file up to there, so that a start need not read what is before it.
    Raises LostRange for a pointer into a file that is gone, WireError for a damaged record, Transient when a batch
    could not be written and was taken back or a file cannot be opened, Permanent once the disk has failed to sync.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync: bool = True,
        files: Files | None = None,
        known: tuple[Pointer, int] = (_START, 0),
    ) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._files = files or Files()
        self._failed = ""
        self._rotation_error = ""
        self._handles: dict[int, io.FileIO] = {}  # the least recently used first
        self._handles_lock = threading.Lock()
        self._max_ts: dict[int, int] = {}
        self._files.make_directory(directory)
        names = self._files.names(directory)
        self._fids = sorted(int(name[:-5]) for name in names if name.endswith(".vlog") and name[:-5].isdecimal())
        sealed = [self._load(fid, known) for fid in self._fids]
        if not sealed or sealed[-1]:
            fid = self._fids[-1] + 1 if self._fids else 0
            self._switch(fid, self._create(fid))
        self._end = self._files.size(self._handle(self._fids[-1]))

    @property
    def end(self) -> Pointer:
        """Where the next record will start: everything before it is on disk."""
        return Pointer(self._fids[-1], self._end)

    @property
    def max_ts(self) -> int:
        """The greatest start_ts or commit_ts in the log; 0 when it is empty."""
        return max(self._max_ts.values(), default=0)

    @property
    def failed(self) -> str:
        """Why nothing can be written any more, or no new file can be begun; empty while all is well."""
        return self._failed or self._rotation_error

    def file_max_ts(self, fid: int) -> int:
        """The greatest ts in file `fid` so far; 0 for a file that is gone."""
        return self._max_ts.get(fid, 0)

    def old_files(self) -> list[tuple[int, int]]:
        """(fid, greatest ts) of every file but the current one, the oldest first."""
        return [(fid, self._max_ts[fid]) for fid in self._fids[:-1]]

    def holds(self, pointer: Pointer) -> bool:
        """Whether a whole record begins at `pointer`, or its file was collected; its crc is not checked."""
        if pointer.fid not in self._max_ts:
            return pointer.fid < self._fids[-1]
        header = self.read_bytes(pointer, HEADER.size)
        if len(header) < HEADER.size:
            return False
        magic, length, _ = HEADER.unpack(header)
        return bool(
            magic == MAGIC and pointer.offset + HEADER.size + length <= self._files.size(self._handle(pointer.fid))
        )

    def room(self) -> int:
        """Bytes until the current file reaches its limit: a batch should end there."""
        left = self._segment_bytes - self._end
        return left if left > 0 else self._segment_bytes  # no new file can be begun: it grows, in batches as large

    def append(self, payloads: Sequence[bytes], max_ts: int) -> list[Pointer]:
        """Write records in one write and one fdatasync; their places. `max_ts`: the greatest ts among them."""
        if self._failed:
            raise Permanent("the value log cannot be written", where={"reason": self._failed})
        fid, offset = self._fids[-1], self._end
        pointers: list[Pointer] = []
        pieces: list[bytes] = []
        for payload in payloads:
            pointers.append(Pointer(fid, offset))
            pieces += (encode_header(payload), payload)
            offset += HEADER.size + len(payload)
        self._write(pieces if offset - self._end > _JOIN_BYTES else [b"".join(pieces)], offset)
        self._max_ts[fid] = max(self._max_ts[fid], max_ts)
        if self._end >= self._segment_bytes:
            self._rotate()
        return pointers

    def read(self, pointer: Pointer) -> bytes:
        """The payload of the record at `pointer`, magic and crc checked."""
        file = self._handle(pointer.fid)
        data = self._files.read(file, pointer.offset, _FIRST_READ)
        header = data[: HEADER.size]
        length = HEADER.unpack(header)[1] if len(header) == HEADER.size else 0
        body = data[HEADER.size : HEADER.size + length]
        if len(body) < length and pointer.offset + HEADER.size + length <= self._files.size(file):
            body = self._files.read(file, pointer.offset + HEADER.size, length)
        check_payload(header, body, pointer)
        return body

    def read_bytes(self, pointer: Pointer, size: int) -> bytes:
        """`size` raw bytes from `pointer` on, headers included; fewer at the end of the file."""
        return self._files.read(self._handle(pointer.fid), pointer.offset, size)

    def scan_from(self, pointer: Pointer, upto: Pointer | None = None) -> Iterator[tuple[Pointer, bytes]]:
        """Every readable record from `pointer` to before `upto` (default: the end), in log order.

        Damaged bytes are logged and passed over.
        """
        end = upto or self.end
        for fid in [fid for fid in self._fids if pointer.fid <= fid <= end.fid]:
            start = pointer.offset if fid == pointer.fid else 0
            yield from self._scan_file(fid, start, end.offset if fid == end.fid else None)

    def remove(self, fids: Iterable[int]) -> None:
        """Delete files, the oldest first; readers that hold one keep it until they are done. Raises OSError."""
        for fid in sorted(fids):
            if fid == self._fids[-1]:
                raise ValueError("the current file of the value log is never removed")
            self._files.remove(self._path(fid))
            with self._handles_lock:
                self._handles.pop(fid, None)
                self._fids = [kept for kept in self._fids if kept != fid]
                del self._max_ts[fid]
            self._files.sync_directory(self._directory)  # each by itself: no later file goes before an earlier one

    def close(self) -> None:
        """Seal the current file when it is worth it (50 KiB) and possible, and close all files."""
        if not self._failed and self._end >= SEAL_ON_CLOSE_BYTES:
            try:
                self._seal()
            except BinlakeError as error:
                log.warning("value_log_not_sealed", file=self._path(self._fids[-1]).name, error=str(error))
        with self._handles_lock:
            self._handles.clear()  # each closes when its last reader lets go of it

    def _path(self, fid: int) -> Path:
        return self._directory / f"{fid:06d}.vlog"

    def _handle(self, fid: int) -> io.FileIO:
        with self._handles_lock:
            file = self._handles.pop(fid, None) or self._open(fid)
            self._keep(fid, file)
            return file

    def _open(self, fid: int) -> io.FileIO:
        try:
            return self._files.open(self._path(fid))
        except FileNotFoundError:
            raise LostRange("a file of the value log is gone", where={"file": self._path(fid).name}) from None
        except OSError as error:
            hint = "raise the limit of open files (ulimit -n)" if error.errno in (EMFILE, ENFILE) else "see the disk"
            where = {"file": self._path(fid).name, "reason": error}
            raise Transient("a file of the value log cannot be opened", where=where, hint=hint) from error

    def _keep(self, fid: int, file: io.FileIO) -> None:
        self._handles[fid] = file
        if len(self._handles) > _OPEN_FILES:
            self._handles.pop(next(iter(self._handles)))  # closes when its last reader lets go of it

    def _load(self, fid: int, known: tuple[Pointer, int]) -> bool:
        footer = self._footer(self._handle(fid))
        self._max_ts[fid] = self._scan_max_ts(fid, known) if footer is None else footer
        return footer is not None

    def _footer(self, file: io.FileIO) -> int | None:
        size = self._files.size(file)
        return decode_footer(self._files.read(file, max(0, size - FOOTER.size), FOOTER.size))

    def _scan_max_ts(self, fid: int, known: tuple[Pointer, int]) -> int:
        start, greatest = (known[0].offset, known[1]) if known[0].fid == fid else (0, 0)
        for _, payload in self._scan_file(fid, start, None):
            head = head_of(payload)
            greatest = max(greatest, head.start_ts, head.commit_ts)
        return greatest

    def _scan_file(self, fid: int, start: int, stop: int | None) -> Iterator[tuple[Pointer, bytes]]:
        file = self._handle(fid)
        size = self._files.size(file)
        sealed = fid != self._fids[-1] and self._footer(file) is not None
        end = size - FOOTER.size if sealed else size
        stop = end if stop is None else min(stop, end)
        for found in scan(lambda at, count: self._files.read(file, at, count), start, stop):
            if found.payload is None:
                log.warning("value_log_damaged", file=self._path(fid).name, offset=found.offset, bytes=found.size)
            else:
                yield Pointer(fid, found.offset), found.payload

    def _write(self, pieces: Sequence[bytes], end: int) -> None:
        file = self._handle(self._fids[-1])
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[self._files.append(file, view) :]
        except OSError as error:
            self._take_back(file, error)
        self._flush(file)
        self._end = end

    def _take_back(self, file: io.FileIO, error: OSError) -> None:
        # The callers will be told that nothing was stored, so nothing may stay.
        try:
            self._files.truncate(file, self._end)
        except OSError as second:
            self._failed = f"write failed ({error}) and could not be taken back ({second})"
            raise Permanent(self._failed) from second
        raise Transient("the value log could not be written", where={"reason": error}) from error

    def _flush(self, file: io.FileIO) -> None:
        if not self._sync:
            return
        try:
            self._files.sync(file)
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: a later success would prove nothing.
            self._failed = f"fdatasync failed: {error}"
            raise Permanent(self._failed, hint="replace the disk, then start the pump again") from error

    def _rotate(self) -> None:
        # The records are durable whatever happens here, so their writers are told so; the next append tries again.
        fid = self._fids[-1] + 1
        try:
            file = self._create(fid)
            self._seal()  # last: nothing may follow a footer
        except (BinlakeError, OSError) as error:
            self._rotation_error = f"no new file of the value log can be begun: {error}"
            log.error("value_log_rotation_failed", file=self._path(fid).name, error=str(error))
        else:
            self._rotation_error = ""
            self._switch(fid, file)

    def _seal(self) -> None:
        fid = self._fids[-1]
        footer = encode_footer(self._max_ts[fid])
        self._write([footer], self._end + len(footer))

    def _create(self, fid: int) -> io.FileIO:
        """A new file whose name is durable; an empty one that a failed rotation or a crash left is taken over."""
        try:
            file = self._files.open(self._path(fid), create=True)
        except FileExistsError:
            file = self._files.open(self._path(fid))
            if self._files.size(file):
                raise
        self._files.sync_directory(self._directory)
        return file

    def _switch(self, fid: int, file: io.FileIO) -> None:
        with self._handles_lock:  # a collection may take old files off the list at the same time
            self._keep(fid, file)
            self._max_ts[fid] = 0
            self._end = 0
            self._fids.append(fid)
