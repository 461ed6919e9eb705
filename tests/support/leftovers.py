"""Find what a test session left running: every process that inherited the session's mark, even if it is detached."""

from __future__ import annotations

import os
import secrets
import time

import psutil

_MARK = "BINLAKE_TEST_SESSION"
PATIENCE_S = 30.0
"""How long processes that are just ending may take; on a busy machine, servers need a while."""
# These end with their parent: PySpark's JVM of a classic session, and Python's own helpers.
_HELPERS = ("pyspark-shell", "multiprocessing.resource_tracker", "multiprocessing.forkserver")


def mark_session() -> None:
    """Mark this process, and so every process that it will start, as part of this session."""
    os.environ[_MARK] = secrets.token_hex(8)


def leftovers() -> list[str]:
    """`pid command` of each process that still runs; processes that are just ending get PATIENCE_S."""
    until = time.monotonic() + PATIENCE_S
    while (found := _list_marked()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _list_marked() -> list[str]:
    own = _with_helpers(psutil.Process())
    found = [one for one in psutil.process_iter() if one.pid not in own and _has_mark(one)]
    # An empty command line means that the process has ended since.
    return [f"{one.pid} {words[:200]}" for one in found if (words := _command_line(one))]


def _with_helpers(me: psutil.Process) -> set[int]:
    helpers = [child for child in me.children() if any(name in _command_line(child) for name in _HELPERS)]
    below = [process for helper in helpers for process in _list_descendants(helper)]
    return {process.pid for process in [me, *helpers, *below]}


def _list_descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command_line(process: psutil.Process) -> str:
    """The command line of a process; empty if it ends meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _has_mark(process: psutil.Process) -> bool:
    try:
        return process.environ().get(_MARK) == os.environ[_MARK] and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
