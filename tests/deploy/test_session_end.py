"""A terminated test session also ends its servers, and a session that left a process running fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import leftovers

from deploy.setup.common import REPOSITORY

pytestmark = pytest.mark.process

_SERVES = """
import pathlib, time
def test_it(mariadb):
    pathlib.Path({note!r}).write_text(str(mariadb.pid))
    time.sleep({seconds})
"""
_LEAVES = """
import pathlib, subprocess, sys
from support import leftovers
leftovers.PATIENCE_S = 1.0
def test_it():
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    pathlib.Path({note!r}).write_text(str(left.pid))
"""


def _session(folder: Path, test: str, **values: object) -> tuple[subprocess.Popen[str], Path]:
    note = folder / "pid"
    path = folder / "test_inner.py"
    path.write_text(test.format(note=str(note), **values))
    own = ["-p", "conftest", "-p", "no:cacheprovider", "--rootdir", str(folder), "-q", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *own],
        cwd=REPOSITORY / "tests",
        # It has another root, so pytest's path settings do not reach it.
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process, note


def _pid(note: Path) -> int:
    until = time.monotonic() + 300  # a MariaDB on a slow disk takes long
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < until, "the inner session did not start its server"
        time.sleep(0.05)
    return int(note.read_text())


@pytest.mark.mariadb
def test_sigterm_ends_the_servers(tmp_path: Path) -> None:
    process, note = _session(tmp_path, _SERVES, seconds=600)
    server = _pid(note)
    process.send_signal(signal.SIGTERM)
    assert "KeyboardInterrupt" in process.communicate(timeout=300)[0]
    assert not psutil.pid_exists(server)


def test_remaining_process_fails_the_session(tmp_path: Path) -> None:
    process, note = _session(tmp_path, _LEAVES)
    said = process.communicate(timeout=300)[0]
    psutil.Process(_pid(note)).kill()
    assert process.returncode == 1
    assert "time.sleep(600)" in said


class _Ending:
    """A process of this session that ends between two readings."""

    pid = 0

    def environ(self) -> dict[str, str]:
        return dict(os.environ)

    def status(self) -> str:
        return psutil.STATUS_RUNNING

    def cmdline(self) -> list[str]:
        raise psutil.NoSuchProcess(self.pid)


def test_process_that_ends_while_it_is_read_does_not_count_as_remaining(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "process_iter", lambda: [_Ending()])
    assert leftovers.leftovers() == []
