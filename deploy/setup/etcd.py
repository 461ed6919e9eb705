"""Puts an etcd server into `.local/etcd`, without root; one that the system has is taken instead. Tests only.

The tests hold the embedded placement driver against it; no deployment needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, SetupError, command, find_program, only_one, say, staged

ROOT = LOCAL / "etcd"
PACKAGES = ("etcd-server",)


def install(root: Path = ROOT) -> Path:
    """Make sure that `etcd` is there and return it. Raises SetupError."""
    unpacked = root / "usr/bin/etcd"
    with only_one("etcd"):
        found = find_program("etcd") or (unpacked if unpacked.exists() else None)
        if found is not None:
            return found
        say("etcd", f"downloading an etcd server into {root}")
        try:
            with staged(root) as tree:
                debian.unpack(PACKAGES, tree)
        except SetupError as error:
            raise SetupError(f"{error}; install etcd 3.4 or newer by the system's package manager") from None
        return unpacked


if __name__ == "__main__":
    sys.exit(command("etcd", lambda: str(install())))
