"""What Binlake writes beside its binlog files: which file holds which commit_ts, and up to where all is there.

Rule: a reader sees what the index names and nothing else, so half a window is never read; what is missing at the end,
which names alone cannot show, is seen. A folder without an index is one of the original.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from binlake.base.filestore import Store
from binlake.binlogfile.names import BinlogFile, parse_name
from binlake.errors import Permanent

PATH = "_binlake/index.json"
FORMAT = 1


@dataclass(frozen=True)
class IndexedFile:
    """A file: `first` and `last` commit_ts, `size` in bytes, `records`, `crc` as `checksum` of all its bytes."""

    name: str
    first: int
    last: int
    size: int
    records: int
    crc: int

    @property
    def file(self) -> BinlogFile:
        """What the name says. Raises Permanent."""
        file = parse_name(self.name)
        if file is None:
            raise _damaged(f"{self.name!r} is not a binlog file")
        return file


@dataclass(frozen=True)
class Index:
    """The files of `feed` that hold all of (lo, hi], in their order.

    `time_zone`: of the texts of TIMESTAMPs in them; "" of an index that was written before it was said.
    """

    feed: str
    lo: int
    hi: int
    files: tuple[IndexedFile, ...] = ()
    time_zone: str = ""

    def to_json(self) -> bytes:
        """As its file has it: timestamps are text (DESIGN 3.12), a line a file."""
        head = {"format": FORMAT, "feed": self.feed, "lo": str(self.lo), "hi": str(self.hi)}
        head |= {"time-zone": self.time_zone} if self.time_zone else {}
        lines = [
            json.dumps({**vars(file), "first": str(file.first), "last": str(file.last)}, ensure_ascii=False)
            for file in self.files
        ]
        return "\n".join([json.dumps(head, ensure_ascii=False), *lines, ""]).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Index:
        """What `to_json` gave. Raises Permanent."""
        try:
            head, *rest = (json.loads(line) for line in content.decode().splitlines())
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']}")
            zone = head.get("time-zone", "")
            return cls(head["feed"], int(head["lo"]), int(head["hi"]), tuple(map(_file, rest)), zone)
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(str(error)) from error


def checksum(data: bytes, before: int = 0) -> int:
    """The CRC-32 (IEEE) of `data` behind bytes that have `before`.

    Not the CRC-32C of the records: what stands in front of its own checksum adds nothing to one of the same polynomial.
    """
    return zlib.crc32(data, before)


def read_index(store: Store) -> Index | None:
    """The index of a folder; None where there is none. Raises Permanent, Transient."""
    content = store.get(PATH)
    return None if content is None else Index.from_json(content)


def _file(raw: Mapping[str, Any]) -> IndexedFile:
    return IndexedFile(raw["name"], int(raw["first"]), int(raw["last"]), raw["size"], raw["records"], raw["crc"])


def _damaged(what: str) -> Permanent:
    return Permanent(f"the index of binlog files is damaged: {what}", where={"path": PATH},
                     hint="bring it back from a copy; without one the files are read as the original's")  # fmt: skip
