"""Ensures one writing process per lake: local log stores exclude writers only within a process (hazards R-41).

A lake on a local disk is locked by flock, which the kernel releases when the holder ends, for whatever reason. One in
an object store is locked by a lease (`lease`): a process on another machine may write it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from deltalake import CommitProperties, Transaction

from binlake.errors import LeaseHeld
from binlake.lake.controltables import MIRROR_HEAD, MIRROR_VERSION, PUMP_MEMBER, SCHEMA_SNAPSHOT
from binlake.lake.lease import find_lease_holder, hold_lease, require_leases
from binlake.lake.objects import open_objects
from binlake.lake.opentable import is_table, open_table
from binlake.lake.paths import LakePaths
from binlake.lake.store import list_folders
from binlake.lake.tables import build_message_table
from binlake.pipeline import BY_NAME, FEED, STAGES

_ALSO_WRITES = {
    "landing": (PUMP_MEMBER.name, SCHEMA_SNAPSHOT.name),
    "mirror": (MIRROR_VERSION.name, MIRROR_HEAD.name),
}
"""By lock, control tables that are written under it alone, beside the tables that `pipeline` names."""
_FENCE = CommitProperties(custom_metadata={"userMetadata": '{"stage": "fence"}'})


def build_commit_properties(
    metadata: Mapping[str, str], transactions: Sequence[Transaction] | None = None
) -> CommitProperties:
    """For a commit to a table that is written under one of these locks: it is refused if another one came first.

    The table has one writer at a time, so that was a writer that had taken over this one's lock. To be called when the
    table is open: it may have been opened after that writer's commit. Raises Transient.
    """
    require_leases()
    return CommitProperties(
        custom_metadata=dict(metadata),
        app_transactions=None if transactions is None else list(transactions),
        max_commit_retries=0,
    )


@contextmanager
def hold_lake_lock(paths: LakePaths, name: str, *, wait_s: float = 60.0) -> Iterator[bool]:
    """Hold the lock `name` of the lake (one per table group: `landing`, `merge`, `sql`, `mirror`).

    Yields whether another process may have held it since this one did. Waits up to `wait_s` seconds, then raises
    LeaseHeld, which names the holder.
    """
    root = paths.local
    if root is None:
        fence, guards = partial(_fence_tables, paths, name), partial(_is_guarded, paths, name)
        with hold_lease(open_objects(paths.root), name, wait_s=wait_s, fence=fence, guards=guards) as is_new:
            yield is_new
        return
    folder = root / "_locks"
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, folder / f"{name}.lock", wait_s)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}".encode(), 0)
        yield True
    finally:
        os.close(handle)


def lock_holder(paths: LakePaths, names: Sequence[str]) -> str:
    """The present holder of one of the locks `names`, or "". Takes no lock: for processes that wait."""
    if paths.local is None:
        objects = open_objects(paths.root)
        return next((f"{name}: {by}" for name in names if (by := find_lease_holder(objects, name))), "")
    for path in [paths.local / "_locks" / f"{name}.lock" for name in names]:
        if path.exists() and not _is_free(path):
            return f"{path.stem}: {path.read_text(encoding='utf-8') or 'an unknown process'}"
    return ""


def _fence_tables(paths: LakePaths, name: str) -> None:
    """Commit to each table that is written under the lock `name`, so that commits of its last holder are refused.

    That holder may be stopped between a table's opening and its commit, which is for the version after the opened one.
    """
    tables = _list_tables(name)
    if name == BY_NAME["mirror"].lock:
        databases = [f"mirror/{folder}" for folder in list_folders(paths.locate_table("mirror"))]
        tables = [f"{db}/{folder}" for db in databases for folder in list_folders(paths.locate_table(db))]
    for table in tables:
        place = paths.locate_table(table)
        if is_table(place):
            opened = open_table(place)
            opened.create_write_transaction([], "append", opened.schema(), commit_properties=_FENCE)


def _list_tables(name: str) -> list[str]:
    """The tables that stages write under the lock `name`, except mirrors."""
    if name.startswith(f"{FEED}-"):
        return [build_message_table(name.removeprefix(f"{FEED}-")).name]
    return [table for stage in STAGES if stage.lock == name for table in stage.writes]


def _is_guarded(paths: LakePaths, name: str, path: str) -> bool:
    """Whether the table at `path` is written under the lock `name` alone."""
    table = path.removeprefix(f"{paths.root}/")
    if table.startswith("mirror/"):
        return name == BY_NAME["mirror"].lock
    return table in (*_list_tables(name), *_ALSO_WRITES.get(name, ()))


def _is_free(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        # Use a shared lock, so that two observers do not see each other.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _acquire(handle: int, path: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = path.read_text(encoding="utf-8") or "an unknown process"
                raise LeaseHeld(
                    f"the lake is being written by {holder}",
                    where={"lock": path},
                    hint="wait for that process, or end it, which releases the lock",
                ) from None
            time.sleep(0.1)
        else:
            return
