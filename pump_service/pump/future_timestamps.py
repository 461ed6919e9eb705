"""Timestamps from the future: a pump refuses them (invariant 2), and a command moves stored ones out of its directory.

A commit_ts above every timestamp that PD has issued would raise the watermark past transactions that are still open,
and at the next start PD's clock would appear to be behind the data. Writers get their timestamps from PD, so a valid
timestamp is below any that PD issues after the write arrived. Nothing above PD's clock plus a small slack is stored.

Most writes are checked against the newest timestamp known here, without a call to PD; a background thread renews it
before it is too old. Only a write above it waits for a fresh one. While PD does not answer, its clock is assumed to
advance in real time.

`set_aside` works on the directory of a stopped pump. First a copy goes to `aside/`. Then the record in its file is
overwritten by a rollback of no transaction with the same length, and the index is removed: the next start rebuilds it
from the remaining records. Each step can be repeated.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from binlake import tso
from binlake.common.localfiles import replace_file, sync_folder
from binlake.errors import BinlakeError, Permanent, Transient, WireError
from binlake.pump_service.pump.directory import DataDirectory, Files
from binlake.pump_service.pump.heads import parse_head
from binlake.pump_service.pump.record import HEAD, Pointer, RecordFrame, Walk, frame_of
from binlake.wire.binlog_pb2 import Binlog, Rollback

log = structlog.get_logger()

SLACK_S = tso.extract_physical(tso.FUTURE_SLACK) / 1000
_WAITING = 4096  # writes that may wait for PD's answer at the same time
_RETRY_S = 1.0  # seconds between two requests to a PD that does not answer

OnJudged = Callable[[BinlakeError | None], None]
"""Called once, on a thread of the ceiling: None = the timestamp may be stored, otherwise the reason to refuse it."""

_EMPTY = Binlog(tp=Rollback, start_ts=0, commit_ts=0, ddl_job_id=0, ddl_schema_state=0).SerializeToString()
_PADDING = b"\xb2\x06"  # field 102, bytes: unknown to other readers, which skip it
_LENGTH_BYTES = 5


class Ceiling:
    """Checks timestamps; thread-safe.

    `clock`: returns a fresh TSO or raises SourceUnavailable. `slack_s`: how far above it a timestamp may be.
    `monotonic`: a clock in seconds. `refused`: how many timestamps were refused.
    """

    def __init__(
        self, clock: Callable[[], int], slack_s: float = SLACK_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._slack = tso.compose(int(slack_s * 1000))
        self._monotonic = monotonic
        self._known, self._known_at = 0, 0.0
        self._calm = 0  # timestamps up to this one are admitted without asking PD
        self._answers = True
        self._asked_at = float("-inf")
        self._waiting: list[tuple[int, OnJudged]] = []
        self._asking = False
        self._lock = threading.Lock()
        self.refused = 0

    def fetch_ts(self) -> int:
        """A fresh timestamp. Raises SourceUnavailable."""
        now = self._clock()
        self._learn(now)
        return now

    def estimate_now(self) -> int:
        """PD's clock as last read, plus the real time that has passed since."""
        with self._lock:
            return self._known + self._compute_elapsed_ts()

    def admits(self, ts: int) -> bool:
        """Whether `ts` may be stored according to the newest known timestamp. If False, call `ask`. Never blocks."""
        return ts <= self._calm or self._admits_recent(ts)

    def ask(self, ts: int, on_judged: OnJudged) -> None:
        """Check `ts` against a fresh timestamp, on a thread. Raises Transient when too many writes wait for one."""
        with self._lock:
            if len(self._waiting) >= _WAITING:
                raise Transient("too many writes wait for PD's clock", where={"ts": ts})
            self._waiting.append((ts, on_judged))
            self._start_asking()

    def compute_highest_allowed(self) -> int:
        """The greatest timestamp that may be stored now; while PD is unreachable it advances in real time."""
        with self._lock:
            return self._compute_highest_allowed()

    def _compute_highest_allowed(self) -> int:
        return self._known + (0 if self._answers else self._compute_elapsed_ts()) + self._slack

    def _compute_elapsed_ts(self) -> int:
        return tso.compose(int((self._monotonic() - self._known_at) * 1000))

    def _admits_recent(self, ts: int) -> bool:
        with self._lock:
            if ts > self._compute_highest_allowed():
                return False
            if self._answers or self._monotonic() - self._asked_at >= _RETRY_S:
                self._start_asking()
            return True

    def _start_asking(self) -> None:
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._run, name="pump-ceiling", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                self._asked_at = self._monotonic()
            failure = self._renew()
            for ts, on_judged in waiting:
                self._answer(on_judged, ts, failure)
            with self._lock:
                if not self._waiting:
                    self._asking = False
                    return

    def _answer(self, on_judged: OnJudged, ts: int, failure: BinlakeError | None) -> None:
        try:
            on_judged(self._judge(ts, failure))
        except Exception:  # the callback of one write failed; the other writes still need their answers
            log.exception("verdict_not_delivered", ts=ts)

    def _renew(self) -> BinlakeError | None:
        try:
            self.fetch_ts()
        except BinlakeError as error:
            with self._lock:
                self._answers = False
            log.warning("clock_not_renewed", error=str(error))
            return error
        return None

    def _learn(self, now: int) -> None:
        with self._lock:
            self._answers = True
            if now >= self._known:
                self._known, self._known_at = now, self._monotonic()
                self._calm = now + self._slack // 2

    def _judge(self, ts: int, failure: BinlakeError | None) -> BinlakeError | None:
        with self._lock:
            line, known = self._compute_highest_allowed(), self._known
            if ts <= line:
                return None
            self.refused += 1
        where = {"ts": ts, "pd_ts": known, "ahead_s": (tso.extract_physical(ts) - tso.extract_physical(known)) // 1000}
        if failure is not None:
            return Transient(f"the timestamp is above PD's clock as last read: {failure.message}", where=where)
        return Permanent(
            "the timestamp is in the future: PD has not issued it",
            where=where,
            hint="send the commit_ts unchanged, as issued by this cluster's PD",
        )


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
