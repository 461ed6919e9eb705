"""The index that Binlake writes next to its binlog files: each file's range of commit_ts, and the complete range.

Rule: a reader only reads files of the index, so half a window is never read, and files missing at the end, which names
alone cannot show, are noticed. A folder without an index is the original's.
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
        """The file of its name. Raises Permanent."""
        file = parse_name(self.name)
        if file is None:
            raise _damaged_error(f"{self.name!r} is not a binlog file")
        return file


@dataclass(frozen=True)
class Index:
    """The files of `feed` with all of (lo, hi], in order.

    `time_zone`: of the texts of TIMESTAMPs in them; "" in an old index without it.
    """

    feed: str
    lo: int
    hi: int
    files: tuple[IndexedFile, ...] = ()
    time_zone: str = ""

    def to_json(self) -> bytes:
        """The content of the index: timestamps are text (DESIGN 3.12), one line per file."""
        head = {"format": FORMAT, "feed": self.feed, "lo": str(self.lo), "hi": str(self.hi)}
        head |= {"time-zone": self.time_zone} if self.time_zone else {}
        lines = [
            json.dumps({**vars(file), "first": str(file.first), "last": str(file.last)}, ensure_ascii=False)
            for file in self.files
        ]
        return "\n".join([json.dumps(head, ensure_ascii=False), *lines, ""]).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Index:
        """The reverse of `to_json`. Raises Permanent."""
        try:
            head, *rest = (json.loads(line) for line in content.decode().splitlines())
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']}")
            zone = head.get("time-zone", "")
            return cls(head["feed"], int(head["lo"]), int(head["hi"]), tuple(map(_parse_file, rest)), zone)
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged_error(str(error)) from error


def checksum(data: bytes, before: int = 0) -> int:
    """The CRC-32 (IEEE) of `data` after bytes with the checksum `before`.

    Not the CRC-32C of the records: data followed by its own checksum adds nothing to a checksum of the same polynomial.
    """
    return zlib.crc32(data, before)


def read_index(store: Store) -> Index | None:
    """The index of a folder; None where there is none. Raises Permanent, Transient."""
    content = store.get(PATH)
    return None if content is None else Index.from_json(content)


def _parse_file(raw: Mapping[str, Any]) -> IndexedFile:
    return IndexedFile(raw["name"], int(raw["first"]), int(raw["last"]), raw["size"], raw["records"], raw["crc"])


def _damaged_error(what: str) -> Permanent:
    return Permanent(f"the index of binlog files is damaged: {what}", where={"path": PATH},
                     hint="restore it from a copy; without an index the files are read as the original's")  # fmt: skip
