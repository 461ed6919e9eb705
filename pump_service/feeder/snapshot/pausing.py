"""Pauses full loads: a file in the feeder's folder names the sources whose load does not read.

The file outlives processes and may be written while a feeder runs or not. A paused load holds no session and no
snapshot at its source: what was read stays, and the load continues in a new snapshot.
"""

from __future__ import annotations

import json
from pathlib import Path

from binlake.base.localfiles import replace_file

_FILE = "paused-loads.json"


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
