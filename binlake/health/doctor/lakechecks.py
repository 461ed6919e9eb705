"""Checks of the lake: its folder, or its object store, can be written, and no table of it has lost a commit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from binlake import tso
from binlake.config import Replication
from binlake.health.doctor.model import DoctorLine
from binlake.lake.continuity import require_all_windows
from binlake.lake.paths import LakePaths
from binlake.lake.storecheck import try_store
from binlake.lake.windowlog import WindowLog

_WRITERS = ("land", "merge", "mirror")


def check_lake_folder(replication: Replication) -> Iterator[DoctorLine]:
    """Whether files can be created there (the first window creates the folder), or the store does what a lake needs."""
    paths = LakePaths.of(replication)
    if paths.local is None:
        try_store(paths)
        yield DoctorLine("folder", "ok", f"{paths.root}: put, conditional put, list and delete were tried")
        return
    existing = next(path for path in (paths.local, *paths.local.parents) if path.exists())
    remedy = f"chown or chmod {existing} for the user of the tasks, or another lake.path"
    try:
        if existing == paths.local:
            tempfile.TemporaryFile(dir=existing, prefix=".doctor-").close()
        elif not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError
    except OSError as error:
        yield DoctorLine(
            "folder", "failure", f"{existing} cannot be written: {error.strerror or 'no permission'}", remedy
        )
        return
    yield DoctorLine(
        "folder", "ok", f"{paths.root}" + ("" if existing == paths.local else ": created by the first window")
    )


def check_commits(replication: Replication) -> Iterator[DoctorLine]:
    """Whether the landed windows tile, and the tables have the commits of the newest windows."""
    paths = LakePaths.of(replication)
    windows = WindowLog(paths)
    if not windows.exists() or (landed := windows.find_landed_range()) is None:
        yield DoctorLine("commits", "not applicable", "nothing has landed yet")
        return
    count = len(windows.list_landed())
    require_all_windows(paths, windows, _WRITERS)
    until = tso.to_datetime(landed[1]).isoformat(sep=" ", timespec="seconds")
    yield DoctorLine("commits", "ok", f"{count:,} windows without a gap, up to {until}")
