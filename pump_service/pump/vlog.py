"""The value log: an append-only set of files; `append` returns only after its bytes are on disk (invariant 1).

One writer at a time calls `append`; reads by pointer and scans may run beside it. Layout, rotation at 500 MiB and
the footer rules are the original's (tidb-binlog 2.2).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from binlake.errors import BinlakeError, LostRange, Permanent, Transient
from binlake.wire.binlog_pb2 import Binlog
from pump_service.pump.record import (
    FOOTER,
    HEADER,
    Pointer,
    check_payload,
    decode_footer,
    encode_footer,
    encode_record,
    scan,
)

log = structlog.get_logger()

SEGMENT_BYTES = 500 << 20  # tidb-binlog 2.2
SEAL_ON_CLOSE_BYTES = 50 << 10  # a smaller file stays open for the next start
_FIRST_READ = 4096


class ValueLog:
    """The files `NNNNNN.vlog` of one directory.

    Raises LostRange for a pointer into a file that is gone, WireError for a damaged record, Transient when a
    batch could not be written and was taken back, Permanent once the disk has failed to sync.
    """

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, sync: bool = True) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._failed = ""
        self._handles: dict[int, int] = {}
        self._handles_lock = threading.Lock()
        self._max_ts: dict[int, int] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self._fids = sorted(int(path.stem) for path in directory.glob("[0-9]*.vlog"))
        sealed = [self._load(fid) for fid in self._fids]
        if not sealed or sealed[-1]:
            self._create(self._fids[-1] + 1 if self._fids else 0)
        self._end = os.fstat(self._handle(self._fids[-1])).st_size

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
        """Why nothing can be written any more; empty while all is well."""
        return self._failed

    def room(self) -> int:
        """Bytes until the current file reaches its limit: a batch should end there."""
        return self._segment_bytes - self._end

    def append(self, payloads: Sequence[bytes], max_ts: int) -> list[Pointer]:
        """Write records in one write and one fdatasync; their places. `max_ts`: the greatest ts among them."""
        if self._failed:
            raise Permanent("the value log cannot be written", where={"reason": self._failed})
        fid, offset, pointers, records = self._fids[-1], self._end, [], []
        for payload in payloads:
            pointers.append(Pointer(fid, offset))
            records.append(encode_record(payload))
            offset += len(records[-1])
        self._write(b"".join(records), offset)
        self._max_ts[fid] = max(self._max_ts[fid], max_ts)
        if self._end >= self._segment_bytes:
            self._rotate()
        return pointers

    def read(self, pointer: Pointer) -> bytes:
        """The payload of the record at `pointer`, magic and crc checked."""
        handle = self._handle(pointer.fid)
        data = os.pread(handle, _FIRST_READ, pointer.offset)
        header = data[: HEADER.size]
        length = HEADER.unpack(header)[1] if len(header) == HEADER.size else 0
        body = data[HEADER.size : HEADER.size + length]
        if len(body) < length and pointer.offset + HEADER.size + length <= os.fstat(handle).st_size:
            body = os.pread(handle, length, pointer.offset + HEADER.size)
        check_payload(header, body, pointer)
        return body

    def scan_from(self, pointer: Pointer) -> Iterator[tuple[Pointer, bytes]]:
        """Every readable record at or after `pointer`, in log order; damaged bytes are logged and passed over."""
        for fid in [fid for fid in self._fids if fid >= pointer.fid]:
            yield from self._scan_file(fid, pointer.offset if fid == pointer.fid else 0)

    def close(self) -> None:
        """Seal the current file when it is worth it (50 KiB) and close all files."""
        if not self._failed and self._end >= SEAL_ON_CLOSE_BYTES:
            self._seal()
        with self._handles_lock:
            for handle in self._handles.values():
                os.close(handle)
            self._handles.clear()

    def _path(self, fid: int) -> Path:
        return self._directory / f"{fid:06d}.vlog"

    def _handle(self, fid: int) -> int:
        with self._handles_lock:
            if fid not in self._handles:
                try:
                    self._handles[fid] = os.open(self._path(fid), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
                except FileNotFoundError:
                    raise LostRange("a file of the value log is gone", where={"file": self._path(fid).name}) from None
            return self._handles[fid]

    def _load(self, fid: int) -> bool:
        handle = self._handle(fid)
        size = os.fstat(handle).st_size
        footer = decode_footer(os.pread(handle, FOOTER.size, max(0, size - FOOTER.size)))
        self._max_ts[fid] = self._scan_max_ts(fid) if footer is None else footer
        return footer is not None

    def _scan_max_ts(self, fid: int) -> int:
        greatest = 0
        for _, payload in self._scan_file(fid, 0):
            binlog = Binlog.FromString(payload)
            greatest = max(greatest, binlog.start_ts, binlog.commit_ts)
        return greatest

    def _scan_file(self, fid: int, start: int) -> Iterator[tuple[Pointer, bytes]]:
        handle = self._handle(fid)
        size = os.fstat(handle).st_size
        if start >= size:
            return
        with mmap.mmap(handle, size, access=mmap.ACCESS_READ) as data:
            sealed = decode_footer(data[-FOOTER.size :]) is not None
            for found in scan(data, start, size - FOOTER.size if sealed else size):
                if found.payload is None:
                    log.warning("value_log_damaged", file=self._path(fid).name, offset=found.offset, bytes=found.size)
                else:
                    yield Pointer(fid, found.offset), found.payload

    def _write(self, data: bytes, end: int) -> None:
        handle = self._handle(self._fids[-1])
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
        except OSError as error:
            self._take_back(handle, error)
        self._flush(handle)
        self._end = end

    def _take_back(self, handle: int, error: OSError) -> None:
        # The callers will be told that nothing was stored, so nothing may stay.
        try:
            os.ftruncate(handle, self._end)
        except OSError as second:
            self._failed = f"write failed ({error}) and could not be taken back ({second})"
            raise Permanent(self._failed) from second
        raise Transient("the value log could not be written", where={"reason": error}) from error

    def _flush(self, handle: int) -> None:
        if not self._sync:
            return
        try:
            os.fdatasync(handle)
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: a later success would prove nothing.
            self._failed = f"fdatasync failed: {error}"
            raise Permanent(self._failed, hint="replace the disk, then start the pump again") from error

    def _rotate(self) -> None:
        # The records are durable whatever happens here, so their writers are told so; the next append tries again.
        try:
            self._seal()
            self._create(self._fids[-1] + 1)
        except (BinlakeError, OSError) as error:
            log.error("value_log_rotation_failed", file=self._path(self._fids[-1]).name, error=str(error))

    def _seal(self) -> None:
        fid = self._fids[-1]
        footer = encode_footer(self._max_ts[fid])
        self._write(footer, self._end + len(footer))

    def _create(self, fid: int) -> None:
        handle = os.open(self._path(fid), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with self._handles_lock:
            self._handles[fid] = handle
        sync_directory(self._directory)
        self._max_ts[fid] = 0
        self._end = 0
        self._fids.append(fid)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: a file that was just created may otherwise vanish with the power."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
