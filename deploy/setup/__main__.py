"""Puts all that Binlake needs below this checkout: `python3 -m deploy.setup [--without-tests]`. Repeatable.

Standard library only: this runs before anything is installed. The first part that fails ends it with one line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from deploy.setup import etcd, jars, java, mariadb, packages
from deploy.setup.common import command

PARTS: dict[str, Callable[[], str]] = {
    "java": java.check,
    "uv": lambda: str(packages.install_uv()),
    "packages": packages.sync,
    "jars": lambda: str(jars.install()),
    "mariadb": lambda: str(mariadb.install()),
    "etcd": lambda: str(etcd.install()),
}
_TESTS_ONLY = frozenset({"etcd"})


def main(arguments: list[str]) -> int:
    """Install every part in turn; the exit status."""
    began = time.monotonic()
    for name, install in PARTS.items():
        if name in _TESTS_ONLY and "--without-tests" in arguments:
            continue
        if command(name, install):
            return 1
    print(f"setup: downloads and installations took {time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
