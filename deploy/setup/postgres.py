"""Puts a PostgreSQL server into `.local/postgres`, without root; one that the system has is taken instead. Tests only.

Airflow's database in a deployment; the tests' Airflow has it here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, command, find_program

ROOT = LOCAL / "postgres"
# Each release of Debian has one PostgreSQL, and this package of no number brings it.
PACKAGES = ("postgresql",)
# Airflow 3.3 supports 14 to 18.
OLDEST = 14
_SYSTEM = Path("/")


def program(root: Path = ROOT) -> Path | None:
    """`postgres`, with `initdb` beside it: the system's, else the unpacked one; None when there is none."""
    return _on_path() or _newest(_SYSTEM) or _newest(root)


def install(root: Path = ROOT) -> Path:
    """Make sure that a server is there and return it. Raises SetupError."""
    return debian.installed("postgres", f"PostgreSQL {OLDEST} or newer", root, PACKAGES, lambda: program(root))


def _on_path() -> Path | None:
    found = find_program("postgres")
    # A link may lead to it alone.
    own = found.resolve() if found else None
    return own if own and (own.parent / "initdb").exists() else None


def _newest(root: Path) -> Path | None:
    # Debian keeps servers of several versions side by side, off the PATH; before 10 they had names like 9.6.
    found = {at.parents[1].name: at for at in root.glob("usr/lib/postgresql/*/bin/postgres")}
    fit = [int(version) for version in found if version.isdigit() and int(version) >= OLDEST]
    return found[str(max(fit))] if fit else None


if __name__ == "__main__":
    sys.exit(command("postgres", lambda: str(install())))
