"""Client programs of MariaDB, used to measure floors: those of the system, or else a package unpacked into `.local`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deploy.setup import debian
from deploy.setup.common import LOCAL, find_program

_ROOT = LOCAL / "mariadb-client"


@dataclass(frozen=True)
class Taken:
    """CPU seconds and wall-clock seconds of a program."""

    cpu_s: float
    wall_s: float


def find_client_program(name: str) -> Path:
    """Return the path of `mariadb-binlog`, `mariadb-dump` or another client program. Raises SetupError."""
    unpacked = _ROOT / "usr/bin" / name

    def look() -> Path | None:
        return find_program(name) or (unpacked if unpacked.exists() else None)

    return debian.ensure_installed("mariadb-client", name, _ROOT, ("mariadb-client",), look)


def run_client(words: Sequence[str], folder: Path) -> Taken:
    """Run a client program in `folder` with its output to /dev/null."""
    return run_piped([words], folder)


def run_piped(commands: Sequence[Sequence[str]], folder: Path) -> Taken:
    """Run client programs in `folder`, each with the output of the one before it, the last one's to /dev/null."""
    env = {**os.environ, "LD_LIBRARY_PATH": debian.find_library_path(_ROOT)}
    programs = [[str(find_client_program(words[0])), *words[1:]] for words in commands]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    for number, words in enumerate(programs, 1):
        given = running[-1].stdout if running else subprocess.DEVNULL
        out = subprocess.DEVNULL if number == len(programs) else subprocess.PIPE
        running.append(subprocess.Popen(words, env=env, cwd=folder, stdin=given, stdout=out))
        if running[:-1]:
            # Only the next program reads it: if that ends, the one before must notice.
            assert running[-2].stdout is not None
            running[-2].stdout.close()
    for one in running:
        if one.wait():
            raise subprocess.CalledProcessError(one.returncode, one.args)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return Taken(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)
