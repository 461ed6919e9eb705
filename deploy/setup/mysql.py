"""Installs a MySQL server into `.local/mysql`, without root, unless the system has one. Tests only.

It is a target of the tests. Debian has it only in its unstable release, whose C library may be newer than this
system's. So the program is started with that release's loader and libraries.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, find_program, run, run_installer

ROOT = LOCAL / "mysql"
PACKAGES = ("mysql-server-core",)
SUITE = "sid"
_NEEDED = ("usr/sbin", "usr/lib", "usr/lib64", "lib", "lib64", "usr/share/mysql")
"""The folders that a server needs; other dependencies (compiler tools, manuals) are deleted."""


def find_server_command(root: Path = ROOT) -> list[str]:
    """The command that starts it: the system's, else the unpacked one's; empty if there is none."""
    system = find_program("mysqld")
    # MariaDB installs a link with that name.
    if system is not None and "MariaDB" not in run([str(system), "--version"]):
        return [str(system)]
    unpacked, loaders = root / "usr/sbin/mysqld", sorted((root / "usr/lib").glob("*-linux-gnu*/ld-linux-*.so.*"))
    if not unpacked.exists() or not loaders:
        return []
    return [str(loaders[0]), "--library-path", debian.find_library_path(root), str(unpacked)]


def install(root: Path = ROOT) -> list[str]:
    """Make sure that a server is installed; returns the command that starts it. Raises SetupError."""
    debian.ensure_installed("mysql", "MySQL 8.0 or newer", root, PACKAGES, lambda: _find_file(root), SUITE)
    _prune(root)
    return find_server_command(root)


def _find_file(root: Path) -> Path | None:
    words = find_server_command(root)
    return Path(words[-1]) if words else None


def _prune(root: Path) -> None:
    needed = {root / name for name in _NEEDED}
    for folder in (root, root / "usr", root / "usr/share"):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry not in needed and not any(entry in one.parents for one in needed):
                entry.unlink() if entry.is_symlink() or entry.is_file() else shutil.rmtree(entry)


if __name__ == "__main__":
    sys.exit(run_installer("mysql", lambda: " ".join(install())))
