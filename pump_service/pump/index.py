"""The index: LevelDB under `kv/` with the original's keys (tidb-binlog 2.3), written behind the acks.

`ts:` + 8 bytes big endian -> pointer (start_ts for P, commit_ts for all others); `!binlog!gcts` and
`!binlog!maxCommitTS` i64 LE; `!binlog!handlePointer` and `!binlog!headPointer` pointers. One batch carries its puts
together with the pointers, so that after a crash they never claim more than is there. Ours alone is
`!binlake!checkpoint`: the sorter's state at the head, so that a start reads nothing before it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

import google_crc32c
import plyvel

from binlake.errors import Permanent
from pump_service.pump.record import Pointer

_PREFIX = b"ts:"
_GC_TS = b"!binlog!gcts"
_MAX_COMMIT_TS = b"!binlog!maxCommitTS"
_HANDLE = b"!binlog!handlePointer"
_HEAD = b"!binlog!headPointer"
_CHECKPOINT = b"!binlake!checkpoint"
_BIG = struct.Struct(">q")
_POINTER = struct.Struct("<Iq")
_LITTLE = struct.Struct("<q")
_CRC = struct.Struct("<I")
_DELETES = 1024  # keys of one batch (tidb-binlog 2.10)

# tidb-binlog 2.3: the library's own defaults pause writes; plyvel has no knob for the L0 triggers.
_OPTIONS = {"lru_cache_size": 8 << 20, "block_restart_interval": 16, "block_size": 4096, "write_buffer_size": 64 << 20}


def ts_key(ts: int) -> bytes:
    """The index key of `ts`."""
    return _PREFIX + _BIG.pack(ts)


def ts_of(key: bytes) -> int:
    """The ts of an index key."""
    return int(_BIG.unpack_from(key, len(_PREFIX))[0])


class Index:
    """The LevelDB of one pump. Raises Permanent when it cannot be opened."""

    def __init__(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = plyvel.DB(str(directory), create_if_missing=True, **_OPTIONS)
        except (plyvel.Error, OSError) as error:
            hint = "another pump may hold it; if it is damaged, remove it: it is rebuilt from the value log"
            raise Permanent(
                f"the index cannot be opened: {error}", where={"directory": directory}, hint=hint
            ) from error
        self._gc_ts = self._number(_GC_TS)

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
        """Add `puts` (ts -> pointer) and move the pointers, all or nothing; idempotent. `sync`: also to the disk.

        `state`: the checkpoint that belongs to `head`; empty = the one that is there stays.
        """
        key, place = _BIG.pack, _POINTER.pack
        with self._db.write_batch(sync=sync) as batch:
            put = batch.put
            for ts, pointer in puts:
                put(_PREFIX + key(ts), place(*pointer))
            put(_HEAD, head.to_bytes())
            put(_HANDLE, handle.to_bytes())
            put(_MAX_COMMIT_TS, _LITTLE.pack(max_ts))
            if state:
                body = head.to_bytes() + state
                put(_CHECKPOINT, _CRC.pack(google_crc32c.value(body)) + body)

    @property
    def checkpoint(self) -> bytes:
        """The state written with the present head; empty when there is none, as after an original pump has run here."""
        value = self._db.get(_CHECKPOINT) or b""
        body = value[_CRC.size :]
        head = self.head.to_bytes()
        whole = len(value) > _CRC.size + len(head) and google_crc32c.value(body) == _CRC.unpack_from(value)[0]
        return body[len(head) :] if whole and body.startswith(head) else b""

    def pointer(self, ts: int) -> Pointer | None:
        """Where the binlog with this ts key is; None when the index does not know it."""
        value = self._db.get(ts_key(ts))
        return None if value is None else Pointer.from_bytes(value)

    def between(self, after_ts: int, upto_ts: int) -> Iterator[tuple[int, Pointer]]:
        """(ts, pointer) in ts order over (after_ts, upto_ts], as of the moment of the call."""
        bounds = {"start": ts_key(after_ts), "include_start": False, "stop": ts_key(upto_ts), "include_stop": True}
        with self._db.iterator(**bounds) as found:
            for key, value in found:
                yield _BIG.unpack_from(key, len(_PREFIX))[0], Pointer.from_bytes(value)

    def batch(self, after_ts: int, upto_ts: int, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` raw (key, pointer) in ts order over (after_ts, upto_ts]."""
        bounds = {"start": ts_key(after_ts), "include_start": False, "stop": ts_key(upto_ts), "include_stop": True}
        with self._db.iterator(**bounds) as found:
            return list(islice(found, limit))

    def remove_below(self, ts: int, fids: Collection[int]) -> int:
        """Delete the keys up to `ts` whose record is in one of `fids`, in small batches; how many there were."""
        removed, doomed = 0, list[bytes]()
        with self._db.iterator(start=_PREFIX, stop=ts_key(ts), include_stop=True) as found:
            for key, value in found:
                if _POINTER.unpack(value)[0] in fids:
                    doomed.append(key)
                if len(doomed) == _DELETES:
                    removed += self._delete(doomed)
                    doomed = []
        removed += self._delete(doomed)
        if removed:
            self._db.compact_range(start=_PREFIX, stop=ts_key(ts))
        return removed

    @property
    def max_ts(self) -> int:
        """The watermark as of the last batch; 0 at the first start."""
        return self._number(_MAX_COMMIT_TS)

    @property
    def gc_ts(self) -> int:
        """Everything up to this ts may be collected; 0 = nothing yet."""
        return self._gc_ts

    def set_gc_ts(self, ts: int) -> None:
        """Remember, durably, that everything up to `ts` may be gone from now on."""
        self._db.put(_GC_TS, _LITTLE.pack(ts), sync=True)
        self._gc_ts = ts

    @property
    def handle(self) -> Pointer:
        """Where to feed the sorter from at a start."""
        return self._pointer(_HANDLE)

    @property
    def head(self) -> Pointer:
        """The last record known to be in the index."""
        return self._pointer(_HEAD)

    def close(self) -> None:
        """Close the database; idempotent."""
        self._db.close()

    def _delete(self, keys: list[bytes]) -> int:
        with self._db.write_batch() as batch:
            for key in keys:
                batch.delete(key)
        return len(keys)

    def _number(self, key: bytes) -> int:
        value = self._db.get(key)
        return 0 if value is None else int(_LITTLE.unpack(value)[0])

    def _pointer(self, key: bytes) -> Pointer:
        value = self._db.get(key)
        return Pointer(0, 0) if value is None else Pointer.from_bytes(value)
