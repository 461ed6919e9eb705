"""Puts a MariaDB server into `.local/mariadb`, without root; one that the system has is taken instead.

The target of the tests and the demo. Repeatable, and safe to run twice at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, command, find_program

ROOT = LOCAL / "mariadb"
PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-common")


def server_binary(root: Path = ROOT) -> Path | None:
    """`mariadbd`: the system's, else the unpacked one; None when there is none."""
    unpacked = root / "usr/sbin/mariadbd"
    return find_program("mariadbd") or (unpacked if unpacked.exists() else None)


def install_script(root: Path = ROOT) -> Path:
    """`mariadb-install-db` of the same installation."""
    return find_program("mariadb-install-db") or root / "usr/bin/mariadb-install-db"


def install(root: Path = ROOT) -> Path:
    """Make sure that a server is there and return it. Raises SetupError."""
    return debian.installed("mariadb", "MariaDB 10.6 or newer", root, PACKAGES, lambda: server_binary(root))


def library_path(root: Path = ROOT) -> str:
    """LD_LIBRARY_PATH for the unpacked programs; empty when the system's server is used."""
    return debian.library_path(root)


if __name__ == "__main__":
    sys.exit(command("mariadb", lambda: str(install())))
