"""The index: LevelDB under `kv/` with the original's keys (tidb-binlog 2.3), written behind the acks.

`ts:` + 8 bytes big endian -> pointer (start_ts for P, commit_ts for all others); `!binlog!gcts` and
`!binlog!maxCommitTS` i64 LE; `!binlog!handlePointer` and `!binlog!headPointer` pointers. One batch carries its puts
together with the pointers, so that after a crash they never claim more than is there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import plyvel

from binlake.errors import Permanent
from pump_service.pump.record import Pointer

_PREFIX = b"ts:"
_GC_TS = b"!binlog!gcts"
_MAX_COMMIT_TS = b"!binlog!maxCommitTS"
_HANDLE = b"!binlog!handlePointer"
_HEAD = b"!binlog!headPointer"
_BIG = struct.Struct(">q")
_LITTLE = struct.Struct("<q")

# tidb-binlog 2.3: the library's own defaults pause writes; plyvel has no knob for the L0 triggers.
_OPTIONS = {"lru_cache_size": 8 << 20, "block_restart_interval": 16, "block_size": 4096, "write_buffer_size": 64 << 20}


def ts_key(ts: int) -> bytes:
    """The index key of `ts`."""
    return _PREFIX + _BIG.pack(ts)


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

    def write(
        self, puts: Iterable[tuple[int, Pointer]], *, head: Pointer, max_ts: int, handle: Pointer, sync: bool = False
    ) -> None:
        """Add `puts` (ts -> pointer) and move the pointers, all or nothing; idempotent. `sync`: also to the disk."""
        with self._db.write_batch(sync=sync) as batch:
            for ts, pointer in puts:
                batch.put(_PREFIX + _BIG.pack(ts), pointer.to_bytes())
            batch.put(_HEAD, head.to_bytes())
            batch.put(_HANDLE, handle.to_bytes())
            batch.put(_MAX_COMMIT_TS, _LITTLE.pack(max_ts))

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

    @property
    def max_ts(self) -> int:
        """The watermark as of the last batch; 0 at the first start."""
        return self._number(_MAX_COMMIT_TS)

    @property
    def gc_ts(self) -> int:
        """Everything up to this ts may be collected; 0 = nothing yet."""
        return self._number(_GC_TS)

    def set_gc_ts(self, ts: int) -> None:
        """Remember, durably, that everything up to `ts` may be gone from now on."""
        self._db.put(_GC_TS, _LITTLE.pack(ts), sync=True)

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

    def _number(self, key: bytes) -> int:
        value = self._db.get(key)
        return 0 if value is None else int(_LITTLE.unpack(value)[0])

    def _pointer(self, key: bytes) -> Pointer:
        value = self._db.get(key)
        return Pointer(0, 0) if value is None else Pointer.from_bytes(value)
