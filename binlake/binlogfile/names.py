"""Names of binlog files: `binlog-INDEX-YYYYMMDDhhmmss`, numbered without a gap.

Rule: files are ordered by index; the timestamp is for people. Names of older drainers (with a version, or without a
timestamp) and of compressed files are recognized too. The original's suffix of compressed files is `.tar.gz`, although
they are not tar files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from binlake import tso
from binlake.errors import Permanent

Compression = Literal["none", "gzip", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip", "zstd")
_NAME = re.compile(
    r"binlog-(?:v[^-]+-)?(?P<index>\d+)(?:-(?P<moment>\d{14}))?(?:-\d+)?(?P<ending>\.tar\.gz|\.gz|\.zst)?"
)
_COMPRESSION_OF: dict[str | None, Compression] = {None: "none", ".tar.gz": "gzip", ".gz": "gzip", ".zst": "zstd"}
MOMENT = "%Y%m%d%H%M%S"


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
