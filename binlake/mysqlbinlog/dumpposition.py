"""The position at which a dump of mydumper or dumpling was taken, from its metadata.

Its rows are not read: they have been restored into the target already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from binlake.errors import ConfigError
from binlake.mysqlbinlog.model import BinlogPosition

METADATA = "metadata"
_TIDB_LOG = "tidb-binlog"
_ENTRY = re.compile(r"^\s*(\w+)\s*[:=]\s*(.*?)\s*$")
_NEXT_PART = re.compile(r"^\s*(SHOW (SLAVE|REPLICA) STATUS|\[(replication|config|`).*|Finished dump)", re.IGNORECASE)
"""What follows the position: the server's own source, the dump's options, tables."""
_FILE = frozenset({"log", "file", "source_log_file"})
_OFFSET = frozenset({"pos", "position", "source_log_pos"})
_GTIDS = frozenset({"gtid", "executed_gtid_set"})


@dataclass(frozen=True)
class DumpPosition:
    """Where a dump was taken: `commit_ts` of a dump of TiDB (else 0), or the position in a MySQL server's log."""

    commit_ts: int
    position: BinlogPosition


def read_dump_position(folder: Path) -> DumpPosition:
    """The position in the metadata of the dump in `folder`. Raises ConfigError."""
    try:
        text = (folder / METADATA).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the folder has no metadata of a dump: {error}", where={"folder": folder}, hint="name the dump's folder"
        ) from None
    return parse_dump_position(folder, text)


def parse_dump_position(folder: Path, metadata: str) -> DumpPosition:
    """The position in `metadata`, the text of the dump's metadata in `folder`. Raises ConfigError."""
    entries = _parse_entries(metadata.splitlines())
    file, offset, gtids = (_find_first(entries, names) for names in (_FILE, _OFFSET, _GTIDS))
    if not file or not offset.isdecimal():
        raise ConfigError(
            "the dump's metadata has no position",
            where={"file": folder / METADATA},
            hint="dump with a consistent snapshot: mydumper without --no-locks, dumpling with --consistency auto",
        )
    if file == _TIDB_LOG:
        return DumpPosition(int(offset), BinlogPosition("", 0))
    return DumpPosition(0, BinlogPosition(file, int(offset), "".join(gtids.split())))


def _parse_entries(lines: list[str]) -> list[tuple[str, str]]:
    """(name, value) of the lines up to the end of the position; a GTID set may take several lines."""
    entries: list[tuple[str, str]] = []
    for line in lines:
        if _NEXT_PART.match(line) and any(name in _FILE for name, _ in entries):
            break
        entry = _ENTRY.match(line)
        if entries and entries[-1][1].endswith(","):
            entries[-1] = (entries[-1][0], entries[-1][1] + line.strip().strip("\"'"))
        elif entry is not None:
            entries.append((entry[1].lower(), entry[2].strip("\"'")))
    return entries


def _find_first(entries: list[tuple[str, str]], names: frozenset[str]) -> str:
    return next((value for name, value in entries if name in names), "")
