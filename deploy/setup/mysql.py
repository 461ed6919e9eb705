"""Puts a MySQL server into `.local/mysql`, without root; one that the system has is taken instead. Tests only.

A target of the tests. Debian has it in its unstable release alone, whose C library this system may be older than: the
program is started by that release's own loader, with its libraries beside it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, command, find_program, run

ROOT = LOCAL / "mysql"
PACKAGES = ("mysql-server-core",)
SUITE = "sid"
_NEEDED = ("usr/sbin", "usr/lib", "usr/lib64", "lib", "lib64", "usr/share/mysql")
"""What a server reads; the rest of what it depends on (a compiler's tools, manuals) is not kept."""


def program(root: Path = ROOT) -> list[str]:
    """The words that start it: the system's, else the unpacked one's; none, empty."""
    system = find_program("mysqld")
    # MariaDB brings a link of that name.
    if system is not None and "MariaDB" not in run([str(system), "--version"]):
        return [str(system)]
    unpacked, loaders = root / "usr/sbin/mysqld", sorted((root / "usr/lib").glob("*-linux-gnu*/ld-linux-*.so.*"))
    if not unpacked.exists() or not loaders:
        return []
    return [str(loaders[0]), "--library-path", debian.library_path(root), str(unpacked)]


def install(root: Path = ROOT) -> list[str]:
    """Make sure that a server is there; the words that start it. Raises SetupError."""
    debian.installed("mysql", "MySQL 8.0 or newer", root, PACKAGES, lambda: _file(root), SUITE)
    _prune(root)
    return program(root)


def _file(root: Path) -> Path | None:
    words = program(root)
    return Path(words[-1]) if words else None


def _prune(root: Path) -> None:
    kept = {root / name for name in _NEEDED}
    for folder in (root, root / "usr", root / "usr/share"):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry not in kept and not any(entry in one.parents for one in kept):
                entry.unlink() if entry.is_symlink() or entry.is_file() else shutil.rmtree(entry)


if __name__ == "__main__":
    sys.exit(command("mysql", lambda: " ".join(install())))
