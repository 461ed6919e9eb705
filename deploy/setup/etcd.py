"""Installs an etcd server into `.local/etcd`, without root, unless the system has one. Tests only.

The tests compare the embedded placement driver with it; no deployment needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, find_program, run_installer

ROOT = LOCAL / "etcd"
PACKAGES = ("etcd-server",)


def find_etcd(root: Path = ROOT) -> Path | None:
    """`etcd`: the system's, else the unpacked one; None if there is none."""
    unpacked = root / "usr/bin/etcd"
    return find_program("etcd") or (unpacked if unpacked.exists() else None)


def install(root: Path = ROOT) -> Path:
    """Make sure that `etcd` is installed, and return it. Raises SetupError."""
    return debian.ensure_installed("etcd", "etcd 3.4 or newer", root, PACKAGES, lambda: find_etcd(root))


if __name__ == "__main__":
    sys.exit(run_installer("etcd", lambda: str(install())))
