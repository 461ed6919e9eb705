"""A server as a child process in its own session: stopping it ends everything it started, or raises an error.

A record in `<folder>/<name>.process` lets a later process stop a server that was left running (`stop_recorded`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from binlake.common.process import start_of

GRACE_S = 10.0
_KILL_S = 60.0  # a write to a slow disk cannot be interrupted
_POLL_S = 0.05
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "_RJEM_MALLOC_CONF": "background_thread:false",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""The environment in which NumPy, deltalake and Arrow start no thread at import, so that the process may fork.

If a process with several threads forks, the child starts with every lock that another thread held at that time.
"""


class ProcessError(Exception):
    """A server did not start, ended unexpectedly, or cannot be stopped; the text has the end of its log."""


class Child:
    """The program `command`; its output goes to `<folder>/<name>.log`.

    `account`: its user and group ids, if they differ from this process's; only root may set them.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        env: Mapping[str, str] | None = None,
        *,
        cwd: Path | None = None,
        account: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._command = [str(word) for word in command]
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._account = build_account_arguments(account)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process  # another thread may stop it meanwhile
        return process.pid if process and process.poll() is None else None

    def start(self) -> Child:
        """Start it without waiting until it serves. Raises ProcessError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                    **self._account,
                )
        except OSError as error:
            raise ProcessError(f"{self.name} cannot be started: {error}") from None
        record = {"pid": self._process.pid, "start": start_of(self._process.pid)}
        self._record.write_text(json.dumps(record), encoding="utf-8")
        return self

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> Child:
        """Return when `ready()` is true. Raises ProcessError if the program ends first, or after `seconds`."""
        until = time.monotonic() + seconds
        while not ready():
            if self.pid is None:
                raise ProcessError(f"{self.name} ended: {self.read_log_end()}")
            if time.monotonic() > until:
                raise ProcessError(f"{self.name} does not serve after {seconds:.0f} s: {self.read_log_end()}")
            time.sleep(_POLL_S)
        return self

    def stop(self, grace_s: float = GRACE_S) -> None:
        """SIGTERM to all its processes, SIGKILL to those left after `grace_s`. Raises ProcessError if one stays."""
        if self._process is None:
            return
        end_session(self._process.pid, self.name, grace_s, reap=self._process.poll)
        self._process.wait()
        self._process = None
        self._record.unlink(missing_ok=True)

    def kill9(self) -> None:
        """SIGKILL to all its processes at once, as if the machine failed."""
        self.stop(grace_s=0.0)

    def read_log_end(self, characters: int = 1500) -> str:
        """The last `characters` of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-characters:] if self.log.exists() else "(no log)"

    @property
    def _record(self) -> Path:
        return self.folder / f"{self.name}.process"


def build_account_arguments(account: tuple[int, int] | None) -> dict[str, Any]:
    """Arguments of `subprocess` that run a program as `account`, without this process's supplementary groups."""
    return {} if account is None else {"user": account[0], "group": account[1], "extra_groups": []}


def list_members(leader: int) -> list[psutil.Process]:
    """The live processes of the session that `leader` opened, and their descendants."""
    processes: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if _find_session(process.pid) == leader:
            processes[process.pid] = process
    for process in list(processes.values()):
        try:
            processes.update({child.pid: child for child in process.children(recursive=True)})
        except psutil.NoSuchProcess:
            continue
    return [process for process in processes.values() if is_alive(process)]


def end_session(leader: int, name: str, grace_s: float, *, reap: Callable[[], object] = lambda: None) -> None:
    """End all of `list_members(leader)`: SIGTERM, after `grace_s` SIGKILL. Raises ProcessError if one stays."""
    known = {process.pid: process for process in list_members(leader)}
    for how, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
        if how == signal.SIGTERM and not grace_s:
            continue
        _send(known.values(), how)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            reap()
            # A program that is ending may still start others, so search again each time.
            known = {pid: process for pid, process in known.items() if is_alive(process)}
            fresh = {process.pid: process for process in list_members(leader) if process.pid not in known}
            _send(fresh.values(), how)
            known |= fresh
            if not known:
                return
            time.sleep(_POLL_S)
    raise ProcessError(f"{name} still runs after SIGKILL: {sorted(known)}")


def stop_recorded(folder: Path, grace_s: float = GRACE_S) -> list[str]:
    """Stop every server with a record in `folder`, the youngest first; returns their names."""
    stopped = []
    for record in sorted(folder.glob("**/*.process"), key=lambda path: path.stat().st_mtime, reverse=True):
        recorded = _read(record)
        if recorded is not None:
            end_session(recorded["pid"], record.stem, grace_s)
            stopped.append(record.stem)
        record.unlink()
    return stopped


def _read(record: Path) -> dict[str, int] | None:
    """The record, if its process still runs and its id was not reused by another process."""
    try:
        recorded: dict[str, int] = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        return None
    start = recorded.get("start")
    return recorded if start is not None and start_of(recorded["pid"]) == start else None


def _send(processes: Iterable[psutil.Process], how: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(how)
        except psutil.NoSuchProcess:
            continue


def _find_session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
