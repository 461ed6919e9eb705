"""Installs a PostgreSQL server into `.local/postgres`, without root, unless the system has one. Tests only.

It is Airflow's database in deployments, and here that of the tests' Airflow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, find_program, run_installer

ROOT = LOCAL / "postgres"
# Each Debian release has one version of PostgreSQL, which this package without a number installs.
PACKAGES = ("postgresql",)
# Airflow 3.3 supports 14 to 18.
OLDEST = 14
_SYSTEM = Path("/")


def find_server(root: Path = ROOT) -> Path | None:
    """`postgres`, with `initdb` next to it: the system's, else the unpacked one; None if there is none."""
    return _find_on_path() or _find_newest(_SYSTEM) or _find_newest(root)


def install(root: Path = ROOT) -> Path:
    """Make sure that a server is installed, and return it. Raises SetupError."""
    return debian.ensure_installed(
        "postgres", f"PostgreSQL {OLDEST} or newer", root, PACKAGES, lambda: find_server(root)
    )


def _find_on_path() -> Path | None:
    found = find_program("postgres")
    # The PATH may have only a link to the program, without `initdb` next to the link.
    own = found.resolve() if found else None
    return own if own and (own.parent / "initdb").exists() else None


def _find_newest(root: Path) -> Path | None:
    # Debian installs servers of several versions side by side, off the PATH; before 10 they had names like 9.6.
    by_version = {at.parents[1].name: at for at in root.glob("usr/lib/postgresql/*/bin/postgres")}
    fit = [int(version) for version in by_version if version.isdigit() and int(version) >= OLDEST]
    return by_version[str(max(fit))] if fit else None


if __name__ == "__main__":
    sys.exit(run_installer("postgres", lambda: str(install())))
