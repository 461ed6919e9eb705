"""How an operator steers full loads: a limit of rows per second, a pause, a request to load tables again.

A pause and a request are files in the feeder's folder: they outlive processes and may be written while a feeder runs or
not. A paused load holds no session and no snapshot at its source: what was read stays, and the load continues in a new
snapshot. One file is one request, so that nothing needs a lock.

The limit is kept by waits between two ranges. A range is read without a wait, because a server ends a session whose
client is slow to take rows. So it is an average over ranges, and `chunk-rows` says how many rows come at once.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from binlake.common.localfiles import replace_file
from binlake.mysqlbinlog.tablerows.link import Name

_FILE = "paused-loads.json"
_FOLDER = "table-loads"


class Throttle:
    """At most `rows_per_second` rows, on average; 0 = no limit. Thread-safe."""

    def __init__(self, rows_per_second: int) -> None:
        self._rate = rows_per_second
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def find_wait_s(self) -> float:
        """Seconds until the next range may be read; 0 = now."""
        with self._lock:
            return max(0.0, self._free_at - time.monotonic()) if self._rate else 0.0

    def add_rows(self, rows: int) -> None:
        """Count rows that were read."""
        if self._rate:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + rows / self._rate


def read_paused(folder: Path) -> frozenset[str]:
    """The names of the sources whose loads are paused."""
    try:
        return frozenset(json.loads((folder / _FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return frozenset()


def set_paused(folder: Path, source: str, *, paused: bool) -> bool:
    """Pause the load of `source`, or let it continue; returns whether that changes anything. Raises OSError."""
    known = read_paused(folder)
    wanted = known | {source} if paused else known - {source}
    if wanted != known:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _FILE, [json.dumps(sorted(wanted)).encode()])
    return wanted != known


@dataclass(frozen=True)
class LoadRequest:
    """`tables` of `source`, in `file`."""

    file: Path
    source: str
    tables: tuple[Name, ...]


def add_request(folder: Path, source: str, tables: Collection[Name]) -> None:
    """Ask the feeder whose data-dir is `folder` to load `tables`. Raises OSError."""
    requests = folder / _FOLDER
    requests.mkdir(parents=True, exist_ok=True)
    body = json.dumps({"source": source, "tables": sorted(tables)}).encode()
    replace_file(requests / f"{uuid.uuid4()}.json", [body])


def list_requests(folder: Path, source: str) -> list[LoadRequest]:
    """The requests for `source`, which stay until `LoadRequest.file` is deleted. Raises OSError."""
    try:
        files = sorted((folder / _FOLDER).glob("*.json"))
        bodies = [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    except FileNotFoundError:
        return []
    requests = [
        LoadRequest(file, body["source"], tuple((db, table) for db, table in body["tables"])) for file, body in bodies
    ]
    return [request for request in requests if request.source == source]
