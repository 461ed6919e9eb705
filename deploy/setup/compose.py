"""Puts Docker Compose into `.local/compose`, without root; one that the system has is taken instead. Tests only.

It reads the compose file as a user's does, without Docker. Debian's build, of the first release that has one in Go.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, SetupError, command, find_program, run

ROOT = LOCAL / "compose"
PACKAGES = ("docker-compose",)
# Before it, Debian had version 1 only. The program needs a C library of 2021 or newer, nothing else.
SUITE = "trixie"
_OLDEST = 2


def program(root: Path = ROOT) -> list[str]:
    """The words that call it: the system's `docker compose` or `docker-compose`, else the unpacked one; none, empty."""
    unpacked = root / "usr/libexec/docker/cli-plugins/docker-compose"
    for words in (["docker", "compose"], ["docker-compose"], [str(unpacked)]):
        path = find_program(words[0])
        if path is not None and _fits(calling := [str(path), *words[1:]]):
            return calling
    return []


def install(root: Path = ROOT) -> list[str]:
    """Make sure that it is there; the words that call it. Raises SetupError."""
    debian.installed("compose", "Docker Compose 2", root, PACKAGES, lambda: _file(root), SUITE)
    return program(root)


def _file(root: Path) -> Path | None:
    words = program(root)
    return Path(words[0]) if words else None


def _fits(words: list[str]) -> bool:
    """Version 1, which ended in 2023, read another format; a `docker` without the plugin tells no version."""
    try:
        version = run([*words, "version", "--short"]).strip().removeprefix("v")
    except SetupError:
        return False
    major = version.partition(".")[0]
    return major.isdecimal() and int(major) >= _OLDEST


if __name__ == "__main__":
    sys.exit(command("compose", lambda: " ".join(install())))
