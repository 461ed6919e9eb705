"""The index: LevelDB under `kv/` with the original's keys (tidb-binlog 2.3), written after the acks.

`ts:` + 8 bytes big endian -> pointer (start_ts for P, commit_ts for all others); `!binlog!gcts` and
`!binlog!maxCommitTS` i64 LE; `!binlog!handlePointer` and `!binlog!headPointer` pointers. One batch writes its entries
together with the pointers, so that after a crash the pointers never cover entries that are missing. One key is
Binlake's own: `!binlake!checkpoint` holds the sorter's state at the head, so that a start reads nothing before it.

A synced batch proves durability only for the LevelDB log file that contains it: LevelDB leaves the previous log file
unsynced until its table is written, and then removes it. Also, entries that follow a failed write in a log file may be
unreadable at the next start. So everything is on disk once a batch was synced, exactly one log file exists, and no
write to that file has failed (`is_durable`).

A range of commit_ts is measured from the index alone (`measure_range`): the log is nearly in the order of commit_ts, so
the distance in the log between two entries is about the bytes between them. The answer decides only who reads the range
and in how many parts, never what is read.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import plyvel
import structlog

from binlake.errors import Permanent, Transient
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.vlog import ValueLog

log = structlog.get_logger()

_PREFIX = b"ts:"
_GC_TS = b"!binlog!gcts"
_MAX_COMMIT_TS = b"!binlog!maxCommitTS"
_HANDLE = b"!binlog!handlePointer"
_HEAD = b"!binlog!headPointer"
_CHECKPOINT = b"!binlake!checkpoint"
_BEHIND_ALL = b"\xff"  # above every key: this range compacts no data, but makes LevelDB write its memory table first
_BIG = struct.Struct(">q")
_POINTER = struct.Struct("<Iq")
_LITTLE = struct.Struct("<q")
_CRC = struct.Struct("<I")
_GREATEST_TS = (1 << 63) - 1
_DELETES = 1024  # keys of one batch (tidb-binlog 2.10)
_CLOSE_S = 10.0  # how long `close` waits for threads that still read
# tidb-binlog 2.3: the library's own defaults pause writes; plyvel has no knob for the L0 triggers.
_OPTIONS = {"lru_cache_size": 8 << 20, "block_restart_interval": 16, "block_size": 4096, "write_buffer_size": 64 << 20}

MOST_CUTS = 255
"""Most cuts of a range; the parts of a longer one grow."""


def encode_ts_key(ts: int) -> bytes:
    """The index key of `ts`."""
    return _PREFIX + _BIG.pack(ts)


def decode_ts_key(key: bytes) -> int:
    """The ts of an index key."""
    return int(_BIG.unpack_from(key, len(_PREFIX))[0])


class PumpIndex:
    """The LevelDB of one pump. Raises Permanent when it cannot be opened, Transient when it is used after `close`."""

    def __init__(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = plyvel.DB(str(directory), create_if_missing=True, **_OPTIONS)
        except (plyvel.Error, OSError) as error:
            hint = "another pump may hold it; if it is damaged, remove it: it is rebuilt from the value log"
            raise Permanent(
                f"the index cannot be opened: {error}", where={"directory": directory}, hint=hint
            ) from error
        self._directory = directory
        self._writing = threading.Lock()
        self._failed = False  # a write failed since the last call of `is_durable`
        self._suspects: set[str] = set()  # log files that may have a hole
        self._users, self._closing = 0, False
        self._unused = threading.Condition()
        self._gc_ts = self._get_number(_GC_TS)

    def write(
        self,
        puts: Iterable[tuple[int, Pointer]],
        *,
        head: Pointer,
        max_ts: int,
        handle: Pointer,
        state: bytes = b"",
        sync: bool = False,
    ) -> None:
        """Add `puts` (ts -> pointer) and move the pointers, all or nothing; idempotent. `sync`: also sync to disk.

        `state`: the checkpoint that belongs to `head`; empty = keep the present checkpoint.
        """
        key, place = _BIG.pack, _POINTER.pack
        with self._write_batch(sync=sync) as batch:
            put = batch.put
            for ts, pointer in puts:
                put(_PREFIX + key(ts), place(*pointer))
            put(_HEAD, head.to_bytes())
            put(_HANDLE, handle.to_bytes())
            put(_MAX_COMMIT_TS, _LITTLE.pack(max_ts))
            if state:
                body = head.to_bytes() + state
                put(_CHECKPOINT, _CRC.pack(google_crc32c.value(body)) + body)

    def is_durable(self) -> bool:
        """Whether everything written up to the last synced batch is on disk (see the module)."""
        with self._writing:
            try:
                logs = {name for name in os.listdir(self._directory) if name.endswith(".log")}
            except OSError as error:
                log.warning("index_logs_not_listed", error=str(error))
                return False
            if self._failed:
                self._suspects, self._failed = self._suspects | logs, False
            self._suspects &= logs
            return len(logs) == 1 and not self._suspects

    def flush(self) -> None:
        """Make LevelDB write its log into a table, so that the next open need not replay it; returns when done."""
        with self._use() as db:
            db.compact_range(start=_BEHIND_ALL, stop=_BEHIND_ALL)

    @property
    def checkpoint(self) -> bytes:
        """The state written with the present head; empty if there is none, as after an original pump has run here."""
        value = self._get(_CHECKPOINT) or b""
        body = value[_CRC.size :]
        head = self.head.to_bytes()
        is_intact = len(value) > _CRC.size + len(head) and google_crc32c.value(body) == _CRC.unpack_from(value)[0]
        return body[len(head) :] if is_intact and body.startswith(head) else b""

    def find_pointer(self, ts: int) -> Pointer | None:
        """The position of the binlog with this ts key; None when it is not in the index."""
        value = self._get(encode_ts_key(ts))
        return None if value is None else Pointer.from_bytes(value)

    def read_batch(self, after_ts: int, upto_ts: int, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` raw (key, pointer) in (after_ts, upto_ts], in ts order. Raises Permanent for damage."""
        return self._read(after_ts, upto_ts, limit)

    def _read(self, after_ts: int, upto_ts: int, limit: int, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        bounds = {
            "start": encode_ts_key(after_ts),
            "include_start": False,
            "stop": encode_ts_key(upto_ts),
            "include_stop": True,
            "reverse": reverse,
        }
        try:
            with self._use() as db, db.iterator(**bounds) as entries:
                return list(islice(entries, limit))
        except plyvel.CorruptionError as error:
            raise Permanent(
                f"the index is damaged: {error}",
                where={"directory": self._directory, "after_ts": after_ts},
                hint="stop the pump and remove this directory: it is rebuilt from the value log at the next start",
            ) from error

    def find_last(self, after_ts: int, upto_ts: int) -> Pointer | None:
        """The pointer of the greatest ts in (after_ts, upto_ts]; None: there is none. Raises Permanent for damage."""
        found = self._read(after_ts, upto_ts, 1, reverse=True)
        return Pointer.from_bytes(found[0][1]) if found else None

    def find_oldest_ts(self) -> int | None:
        """The lowest ts of a stored binlog; None when there is none. Raises Permanent for damage."""
        return next((decode_ts_key(key) for key, _ in self.read_batch(0, _GREATEST_TS, 1)), None)

    def remove_below(self, ts: int, fids: Collection[int]) -> int:
        """Delete the keys up to `ts` whose record is in one of `fids`, in small batches; return their number."""
        removed, doomed = 0, list[bytes]()
        with self._use() as db, db.iterator(start=_PREFIX, stop=encode_ts_key(ts), include_stop=True) as entries:
            for key, value in entries:
                if _POINTER.unpack(value)[0] in fids:
                    doomed.append(key)
                if len(doomed) == _DELETES:
                    removed += self._delete(doomed)
                    doomed = []
        removed += self._delete(doomed)
        if removed:
            with self._use() as db:
                db.compact_range(start=_PREFIX, stop=encode_ts_key(ts))
        return removed

    @property
    def max_ts(self) -> int:
        """The watermark as of the last batch; 0 before the first one."""
        return self._get_number(_MAX_COMMIT_TS)

    @property
    def gc_ts(self) -> int:
        """Everything up to this ts may be collected; 0 = nothing yet."""
        return self._gc_ts

    def set_gc_ts(self, ts: int) -> None:
        """Remember, durably, that everything up to `ts` may have been removed."""
        with self._write_batch(sync=True) as batch:
            batch.put(_GC_TS, _LITTLE.pack(ts))
        self._gc_ts = ts

    @property
    def handle(self) -> Pointer:
        """The record from which a restart feeds the sorter."""
        return self._get_pointer(_HANDLE)

    @property
    def head(self) -> Pointer:
        """The last record known to be in the index."""
        return self._get_pointer(_HEAD)

    def close(self) -> None:
        """Close the database once no thread reads it; idempotent. If a thread takes too long, it stays open."""
        with self._unused:
            self._closing = True
            unused = self._unused.wait_for(lambda: not self._users, _CLOSE_S)
        if unused:
            self._db.close()
        else:
            log.warning("index_left_open", directory=str(self._directory), readers=self._users)

    @contextmanager
    def _use(self) -> Iterator[plyvel.DB]:
        # If LevelDB is closed during a call, the process crashes.
        with self._unused:
            if self._closing:
                raise Transient("the index is closed: the pump is stopping")
            self._users += 1
        try:
            yield self._db
        finally:
            with self._unused:
                self._users -= 1
                self._unused.notify_all()

    @contextmanager
    def _write_batch(self, *, sync: bool = False) -> Iterator[plyvel.WriteBatch]:
        """A batch, written at the end. A failure is remembered for `is_durable` before anything else is written."""
        with self._use() as db, self._writing:
            try:
                with db.write_batch(sync=sync) as batch:
                    yield batch
            except plyvel.Error:
                self._failed = True
                raise

    def _get(self, key: bytes) -> bytes | None:
        with self._use() as db:
            value: bytes | None = db.get(key)
            return value

    def _delete(self, keys: list[bytes]) -> int:
        with self._write_batch() as batch:
            for key in keys:
                batch.delete(key)
        return len(keys)

    def _get_number(self, key: bytes) -> int:
        value = self._get(key)
        return 0 if value is None else int(_LITTLE.unpack(value)[0])

    def _get_pointer(self, key: bytes) -> Pointer:
        value = self._get(key)
        return Pointer(0, 0) if value is None else Pointer.from_bytes(value)


class MeasuredRange(NamedTuple):
    """About how many bytes a range has, and the commit_ts, ascending, at which its parts end, but for the last one."""

    bytes: int
    cuts: tuple[int, ...]


def measure_range(index: PumpIndex, log: ValueLog, after_ts: int, upto_ts: int, part_bytes: int) -> MeasuredRange:
    """Measure (after_ts, upto_ts]; `part_bytes` of 0: no cuts. Raises Permanent for a damaged index."""
    last = index.find_last(after_ts, upto_ts)
    if last is None:
        return MeasuredRange(0, ())
    places = _Places(index, log, upto_ts, last)
    begin, end = places.find_after(after_ts), places.locate(last)
    size = max(0, end - begin)
    if not part_bytes or size <= part_bytes:
        return MeasuredRange(size, ())
    count = min(MOST_CUTS, -(-size // part_bytes) - 1)
    targets = [begin + size * number // (count + 1) for number in range(1, count + 1)]
    return MeasuredRange(size, tuple(sorted({places.find_ts(target, after_ts) for target in targets} - {after_ts})))


class _Places:
    """Distances in the log, from the begin of its oldest file."""

    def __init__(self, index: PumpIndex, log: ValueLog, upto_ts: int, last: Pointer) -> None:
        self._index = index
        self._upto_ts = upto_ts
        self._last = last
        sizes = log.list_sizes()
        self._begins = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))

    def locate(self, pointer: Pointer) -> int:
        """Where `pointer` is; an entry of a collected file lies before all others."""
        begin = self._begins.get(pointer.fid)
        return 0 if begin is None else begin + pointer.offset

    def find_after(self, ts: int) -> int:
        """Where the first entry above `ts` is."""
        entries = self._index.read_batch(ts, self._upto_ts, 1)
        return self.locate(Pointer.from_bytes(entries[0][1]) if entries else self._last)

    def find_ts(self, place: int, after_ts: int) -> int:
        """The last ts whose successor is not beyond `place`."""
        span = range(after_ts, self._upto_ts)
        return span[bisect_left(span, place, key=self.find_after, hi=len(span) - 1)]
