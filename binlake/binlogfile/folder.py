"""A folder of binlog files: their names `binlog-INDEX-YYYYMMDDhhmmss`, and the index that Binlake writes next to them.

Rule: files are ordered by index; the timestamp is for people. Names of older drainers (with a version, or without a
timestamp) and of compressed files are recognized too. The original's suffix of compressed files is `.tar.gz`, although
they are not tar files.

The index has each file's range of commit_ts, and the complete range. A reader reads only files of the index. So it
never reads a half-written window, and it detects missing files at the end, which the names alone cannot show. A folder
without an index was written by the original.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from binlake import tso
from binlake.common.filestore import StoredFiles
from binlake.errors import Permanent

Compression = Literal["none", "gzip", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip", "zstd")
_NAME = re.compile(
    r"binlog-(?:v[^-]+-)?(?P<index>\d+)(?:-(?P<moment>\d{14}))?(?:-\d+)?(?P<ending>\.tar\.gz|\.gz|\.zst)?"
)
_COMPRESSION_OF: dict[str | None, Compression] = {None: "none", ".tar.gz": "gzip", ".gz": "gzip", ".zst": "zstd"}
MOMENT = "%Y%m%d%H%M%S"
INDEX_PATH = "_binlake/index.json"
INDEX_FORMAT = 1


@dataclass(frozen=True, order=True)
class BinlogFile:
    """A file by its `name` in the folder. `moment`: its timestamp YYYYMMDDhhmmss; empty in the oldest names."""

    index: int
    name: str
    moment: str
    compression: Compression


def format_file_name(index: int, commit_ts: int, compression: Compression = "none") -> str:
    """The name of the file that begins with `commit_ts`; its timestamp is the time of that commit, in UTC."""
    name = f"binlog-{index:016d}-{tso.to_datetime(commit_ts).strftime(MOMENT)}"
    if compression == "gzip":
        return f"{name}-{commit_ts}.tar.gz"
    return f"{name}.zst" if compression == "zstd" else name


def parse_name(name: str) -> BinlogFile | None:
    """The binlog file with this `name`; None for other files, such as `.lock` and `checkpoint`."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return BinlogFile(int(match["index"]), name, match["moment"] or "", _COMPRESSION_OF[match["ending"]])


def select_binlog_files(names: Iterable[str]) -> list[BinlogFile]:
    """The binlog files among the names in a folder, by index."""
    return sorted(file for name in names if (file := parse_name(name)) is not None)


def require_sequence(files: Sequence[BinlogFile], folder: str) -> None:
    """Check that each index from the first to the last exists once. Raises Permanent, naming the files at fault."""
    for before, file in pairwise(files):
        if file.index == before.index:
            raise Permanent(
                "two binlog files have the same number",
                where={"folder": folder, "files": f"{before.name}, {file.name}"},
                hint="keep the intact one (`binlake files verify` reads both) and move the other away",
            )
        if file.index != before.index + 1:
            gap = f"{before.index + 1}" if file.index == before.index + 2 else f"{before.index + 1}-{file.index - 1}"
            raise Permanent(
                "binlog files are missing",
                where={"folder": folder, "missing": gap, "after": before.name, "before": file.name},
                hint="restore them from a copy, or use a range on one side of the gap",
            )


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
        head = {"format": INDEX_FORMAT, "feed": self.feed, "lo": str(self.lo), "hi": str(self.hi)}
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
            if head["format"] != INDEX_FORMAT:
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
    content = store.get(INDEX_PATH)
    return None if content is None else BinlogIndex.from_json(content)


def _parse_file(raw: Mapping[str, Any]) -> IndexedFile:
    return IndexedFile(raw["name"], int(raw["first"]), int(raw["last"]), raw["size"], raw["records"], raw["crc"])


def _build_damaged_error(what: str) -> Permanent:
    return Permanent(f"the index of binlog files is damaged: {what}", where={"path": INDEX_PATH},
                     hint="restore it from a copy; without an index, the files are read as a drainer's")  # fmt: skip
