"""Finds what a test session left running: every process that inherited the session's mark, however far detached."""

from __future__ import annotations

import os
import secrets
import time

import psutil

_MARK = "BINLAKE_TEST_SESSION"
_PATIENCE_S = 10.0
# These end with the process that has them: PySpark's JVM of a classic session, and Python's own helper.
_HELPERS = ("pyspark-shell", "multiprocessing.resource_tracker")


def mark_session() -> None:
    """Give this process, and so all it will start, the mark of this session."""
    os.environ[_MARK] = secrets.token_hex(8)


def leftovers(patience_s: float = _PATIENCE_S) -> list[str]:
    """`pid command` of what still runs; what is just ending gets `patience_s` to do so."""
    until = time.monotonic() + patience_s
    while (found := _marked()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _marked() -> list[str]:
    own = _with_helpers(psutil.Process())
    found = []
    for process in psutil.process_iter():
        if process.pid not in own and _bears_mark(process):
            found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found


def _with_helpers(me: psutil.Process) -> set[int]:
    helpers = [child for child in me.children() if any(name in " ".join(child.cmdline()) for name in _HELPERS)]
    below = [process for helper in helpers for process in helper.children(recursive=True)]
    return {process.pid for process in [me, *helpers, *below]}


def _bears_mark(process: psutil.Process) -> bool:
    try:
        return process.environ().get(_MARK) == os.environ[_MARK] and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
