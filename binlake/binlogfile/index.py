"""The index that Binlake writes next to its binlog files: each file's range of commit_ts, and the complete range.

Rule: a reader reads only files of the index. So it never reads a half-written window, and it detects missing files at
the end, which the names alone cannot show. A folder without an index was written by the original.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from binlake.base.filestore import StoredFiles
from binlake.binlogfile.names import BinlogFile, parse_name
from binlake.errors import Permanent

PATH = "_binlake/index.json"
FORMAT = 1


@dataclass(frozen=True)
class IndexedFile:
    """A file: `first` and `last` commit_ts, `size` in bytes, number of `records`, `crc`: `compute_checksum` of all its
    bytes."""

    name: str
    first: int
    last: int
    size: int
    records: int
    crc: int

    @property
    def file(self) -> BinlogFile:
        """The file with this name. Raises Permanent."""
        file = parse_name(self.name)
        if file is None:
            raise _build_damaged_error(f"{self.name!r} is not a binlog file")
        return file


@dataclass(frozen=True)
class BinlogIndex:
    """The files of `feed`, in order; together they have all transactions of (lo, hi].

    `time_zone`: the zone of the TIMESTAMP texts in them; "" in an old index without it.
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
    def from_json(cls, content: bytes) -> BinlogIndex:
        """Parse what `to_json` wrote. Raises Permanent."""
        try:
            head, *rest = (json.loads(line) for line in content.decode().splitlines())
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']}")
            zone = head.get("time-zone", "")
            return cls(head["feed"], int(head["lo"]), int(head["hi"]), tuple(map(_parse_file, rest)), zone)
        except (ValueError, KeyError, TypeError) as error:
            raise _build_damaged_error(str(error)) from error


def compute_checksum(data: bytes, before: int = 0) -> int:
    """The CRC-32 (IEEE) of `data` after bytes with the checksum `before`.

    It differs from the CRC-32C of the records, because a checksum of the same polynomial over data that is followed by
    its checksum would not depend on the data.
    """
    return zlib.crc32(data, before)


def read_index(store: StoredFiles) -> BinlogIndex | None:
    """The index of a folder; None if it has none. Raises Permanent, Transient."""
    content = store.get(PATH)
    return None if content is None else BinlogIndex.from_json(content)


def _parse_file(raw: Mapping[str, Any]) -> IndexedFile:
    return IndexedFile(raw["name"], int(raw["first"]), int(raw["last"]), raw["size"], raw["records"], raw["crc"])


def _build_damaged_error(what: str) -> Permanent:
    return Permanent(f"the index of binlog files is damaged: {what}", where={"path": PATH},
                     hint="restore it from a copy; without an index, the files are read as a drainer's")  # fmt: skip
