"""Installs Docker Compose into `.local/compose`, without root, unless the system has it. Tests only.

It checks the compose file as a user's Compose does, without Docker. The build is that of the first Debian release with
version 2.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, SetupError, command, find_program, run

ROOT = LOCAL / "compose"
PACKAGES = ("docker-compose",)
# Earlier Debian releases have only version 1. The program needs only a C library of 2021 or newer.
SUITE = "trixie"
_OLDEST = 2


def program(root: Path = ROOT) -> list[str]:
    """The command: the system's `docker compose` or `docker-compose`, else the unpacked one; empty if there is none."""
    unpacked = root / "usr/libexec/docker/cli-plugins/docker-compose"
    for words in (["docker", "compose"], ["docker-compose"], [str(unpacked)]):
        path = find_program(words[0])
        if path is not None and _fits(calling := [str(path), *words[1:]]):
            return calling
    return []


def install(root: Path = ROOT) -> list[str]:
    """Make sure that it is installed; returns the command. Raises SetupError."""
    debian.installed("compose", "Docker Compose 2", root, PACKAGES, lambda: _file(root), SUITE)
    return program(root)


def _file(root: Path) -> Path | None:
    words = program(root)
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
    sys.exit(command("compose", lambda: " ".join(install())))
