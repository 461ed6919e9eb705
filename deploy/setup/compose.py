"""Installs Docker Compose into `.local/compose`, without root, unless the system has it. Tests only.

It checks the compose file as a user's Compose does, without Docker. The build is that of the first Debian release with
version 2.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, SetupError, find_program, run, run_installer

ROOT = LOCAL / "compose"
PACKAGES = ("docker-compose",)
# Earlier Debian releases have only version 1. The program needs only a C library of 2021 or newer.
SUITE = "trixie"
_OLDEST = 2


def find_command(root: Path = ROOT) -> list[str]:
    """The command: the system's `docker compose` or `docker-compose`, else the unpacked one; empty if there is none."""
    unpacked = root / "usr/libexec/docker/cli-plugins/docker-compose"
    for words in (["docker", "compose"], ["docker-compose"], [str(unpacked)]):
        path = find_program(words[0])
        if path is not None and _fits(calling := [str(path), *words[1:]]):
            return calling
    return []


def install(root: Path = ROOT) -> list[str]:
    """Make sure that it is installed; returns the command. Raises SetupError."""
    debian.ensure_installed("compose", "Docker Compose 2", root, PACKAGES, lambda: _find_file(root), SUITE)
    return find_command(root)


def _find_file(root: Path) -> Path | None:
    words = find_command(root)
    return Path(words[0]) if words else None


def _fits(words: list[str]) -> bool:
    """True for version 2 or newer: version 1 reads another format; `docker` without the plugin reports no version."""
    try:
        version = run([*words, "version", "--short"]).strip().removeprefix("v")
    except SetupError:
        return False
    major = version.partition(".")[0]
    return major.isdecimal() and int(major) >= _OLDEST


if __name__ == "__main__":
    sys.exit(run_installer("compose", lambda: " ".join(install())))
