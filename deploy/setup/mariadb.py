"""Installs a MariaDB server into `.local/mariadb`, without root, unless the system has one.

It is the target of the tests and the demo. The installer can be repeated, and run twice at the same time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, find_program, run_installer

ROOT = LOCAL / "mariadb"
PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-common")


def find_server(root: Path = ROOT) -> Path | None:
    """`mariadbd`: the system's, else the unpacked one; None if there is none."""
    unpacked = root / "usr/sbin/mariadbd"
    return find_program("mariadbd") or (unpacked if unpacked.exists() else None)


def install_script(root: Path = ROOT) -> Path:
    """`mariadb-install-db` of the same installation."""
    return find_program("mariadb-install-db") or root / "usr/bin/mariadb-install-db"


def install(root: Path = ROOT) -> Path:
    """Make sure that a server is installed, and return it. Raises SetupError."""
    return debian.ensure_installed("mariadb", "MariaDB 10.6 or newer", root, PACKAGES, lambda: find_server(root))


def find_library_path(root: Path = ROOT) -> str:
    """LD_LIBRARY_PATH for the unpacked programs; empty if the system's server is used."""
    return debian.find_library_path(root)


if __name__ == "__main__":
    sys.exit(run_installer("mariadb", lambda: str(install())))
