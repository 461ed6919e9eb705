"""What the installers share: one folder (`.local/`), one installer at a time, and atomic installation."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LOCAL = REPOSITORY / ".local"
STAMP = ".binlake-lock"
"""The file of an installation that has the digest of the lock that it follows."""
# Debian's folders for server programs, which are not on an ordinary user's PATH.
_SERVER_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class SetupError(Exception):
    """An installation failed; one line says what failed and what to do."""


def run(command: Sequence[str], folder: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """The output of `command`. Raises SetupError, with the end of the output, if it fails or does not exist."""
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SetupError(f"`{command[0]}` is not installed") from None
    if done.returncode:
        said = " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-5:])
        raise SetupError(f"`{' '.join(command)}` failed ({done.returncode}): {said}")
    return done.stdout


def find_program(name: str) -> Path | None:
    """The program `name` of this system, on the PATH or in a folder of server programs; None if there is none."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SERVER_FOLDERS]))
    return Path(found) if found else None


@contextmanager
def hold_install_lock(name: str) -> Iterator[None]:
    """Allow only one process at a time to install `name`; others wait."""
    LOCAL.mkdir(parents=True, exist_ok=True)
    with (LOCAL / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def stage_folder(target: Path) -> Iterator[Path]:
    """A folder that is renamed to `target` when the block succeeds; use it under `hold_install_lock`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for torn in target.parent.glob(f"{target.name}-setup-*"):
        # Left by a run that was killed; no other process is installing, because this one holds the lock.
        shutil.rmtree(torn)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}-setup-") as scratch:
        tree = Path(scratch) / "tree"
        tree.mkdir()
        yield tree
        if target.exists():
            shutil.rmtree(target)
        tree.rename(target)


def install_by_lock(name: str, root: Path, lock: Path, fill: Callable[[Path], None]) -> None:
    """Make sure that `root` has what `fill` puts into an empty folder, for this content of the file `lock`.

    The folder is renamed afterwards. Raises SetupError.
    """
    wanted, stamp = hashlib.sha256(lock.read_bytes()).hexdigest(), root / STAMP
    with hold_install_lock(name):
        if not stamp.exists() or stamp.read_text() != wanted:
            say(name, f"installing into {root}")
            with stage_folder(root) as tree:
                fill(tree)
                (tree / STAMP).write_text(wanted)


def say(name: str, text: str) -> None:
    """Print what an installer is about to do."""
    print(f"{name}: {text}", flush=True)


def run_installer(name: str, install: Callable[[], str]) -> int:
    """Run one installer as a program; print its result with the seconds, or an error in one line and return 1."""
    began = time.monotonic()
    try:
        result = install()
    except SetupError as error:
        print(f"error: {name}: {error}", file=sys.stderr, flush=True)
        return 1
    say(name, f"{result} ({time.monotonic() - began:.1f} s)")
    return 0
