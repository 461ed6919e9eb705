"""Client programs of MariaDB and mydumper, used as floors and peers: those of the system, or else packages unpacked
into `.local`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deploy.setup import debian
from deploy.setup.common import LOCAL, find_program

_PACKAGES = {"mydumper": "mydumper", "myloader": "mydumper"}
"""The Debian package of a program that is not in `mariadb-client`."""
_POLL_S = 0.05


@dataclass(frozen=True)
class Taken:
    """CPU seconds and wall-clock seconds of programs that ran together; the peak memory of each, in bytes."""

    cpu_s: float
    wall_s: float
    peaks: dict[str, int] = field(default_factory=dict)


def find_client_program(name: str) -> Path:
    """Return the path of `mariadb-binlog`, `mariadb-dump`, `mydumper` or another client program. Raises SetupError."""
    package = _PACKAGES.get(name, "mariadb-client")
    unpacked = LOCAL / package / "usr/bin" / name

    def look() -> Path | None:
        return find_program(name) or (unpacked if unpacked.exists() else None)

    return debian.ensure_installed(package, name, LOCAL / package, (package,), look)


def run_client(words: Sequence[str], folder: Path) -> Taken:
    """Run a client program in `folder` with its output to /dev/null."""
    return run_piped([words], folder)


def run_piped(commands: Sequence[Sequence[str]], folder: Path) -> Taken:
    """Run client programs in `folder`, each with the output of the one before it, the last one's to /dev/null."""
    programs = [[str(find_client_program(words[0])), *words[1:]] for words in commands]
    began = time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    for number, words in enumerate(programs, 1):
        given = running[-1].stdout if running else subprocess.DEVNULL
        out = subprocess.DEVNULL if number == len(programs) else subprocess.PIPE
        libraries = {"LD_LIBRARY_PATH": debian.find_library_path(Path(words[0]).parents[2])}
        running.append(subprocess.Popen(words, env={**os.environ, **libraries}, cwd=folder, stdin=given, stdout=out))
        if running[:-1]:
            # Only the next program reads it: if that ends, the one before must notice.
            assert running[-2].stdout is not None
            running[-2].stdout.close()
    with ThreadPoolExecutor(len(running)) as pool:
        used = list(pool.map(_wait_for, running))
    peaks = {Path(words[0]).name: peak for words, (_, peak) in zip(programs, used, strict=True)}
    return Taken(sum(cpu for cpu, _ in used), time.perf_counter() - began, peaks)


def _wait_for(program: subprocess.Popen[bytes]) -> tuple[float, int]:
    """CPU seconds and peak memory in bytes of a program that has ended. Raises CalledProcessError."""
    peak = 0
    # The kernel's own maximum for an ended process includes this process's memory, from which it was forked.
    while os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        peak = max(peak, read_peak(program.pid))
        time.sleep(_POLL_S)
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, program.args)
    return usage.ru_utime + usage.ru_stime, peak


def read_peak(pid: int) -> int:
    """The peak of a process's resident memory in bytes; 0 if it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
