"""Debian packages without root: apt downloads them into a private folder, and they are unpacked below `.local`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.setup.common import SetupError, find_program, hold_install_lock, run, say, stage_folder

# Debian's package `debian-archive-keyring` has the keys of all its releases, including newer ones.
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpack(packages: Sequence[str], tree: Path, suite: str = "") -> None:
    """Unpack `packages`, and those of their dependencies that this system lacks, below `tree`. Raises SetupError.

    They come from this system's release, or from `suite`, which may be newer.
    """
    if find_program("apt-get") is None or find_program("dpkg") is None:
        raise SetupError("this system has no apt")
    with tempfile.TemporaryDirectory(prefix="binlake-apt-") as scratch:
        archives = _download(packages, Path(scratch), suite)
        for archive in archives:
            run(["dpkg", "-x", str(archive), str(tree)])


def ensure_installed(
    name: str, wanted: str, root: Path, packages: Sequence[str], look: Callable[[], Path | None], suite: str = ""
) -> Path:
    """The program that `look` finds; if it finds none, `packages` (of `suite`) are first unpacked below `root`.

    `wanted` names, for an error message, what could be installed on the system instead. Raises SetupError.
    """
    with hold_install_lock(name):
        program = look()
        if program is not None:
            return program
        say(name, f"downloading {', '.join(packages)} into {root}")
        try:
            with stage_folder(root) as tree:
                unpack(packages, tree, suite)
        except SetupError as error:
            raise SetupError(f"{error}; install {wanted} with the system's package manager") from None
        program = look()
        if program is None:
            raise SetupError(f"the packages {', '.join(packages)} do not contain the program")
        return program


def find_library_path(root: Path) -> str:
    """LD_LIBRARY_PATH for programs below `root`: its library folders; empty if there are none."""
    folders = [*(root / "usr/lib").glob("*-linux-gnu*"), *(root / "lib").glob("*-linux-gnu*")]
    return ":".join(str(folder) for folder in folders)


def _download(packages: Sequence[str], scratch: Path, suite: str) -> list[Path]:
    lists, cache = scratch / "lists", scratch / "cache"
    for folder in (lists / "partial", cache / "archives/partial"):
        folder.mkdir(parents=True)
    own_place = [f"-oDir::State::lists={lists}", f"-oDir::Cache={cache}"]
    # Without root, apt cannot switch to the `_apt` user or take the system's lock; nothing of the system is written.
    apt = ["apt-get", "-qq", *own_place, "-oAPT::Sandbox::User=", "-oDebug::NoLocking=1"]
    run([*apt, "update"])
    if suite:
        apt += _limit_to_suite(suite, apt, scratch)
        run([*apt, "update"])
    run([*apt, "-y", "--no-install-recommends", "--download-only", "install", *packages])
    return sorted((cache / "archives").glob("*.deb"))


def _limit_to_suite(suite: str, apt: Sequence[str], scratch: Path) -> list[str]:
    """Options that limit `apt` to `suite`, from the mirror that this system uses, signed with Debian's keys."""
    wanted = ("Origin: Debian", "Label: Debian", "Identifier: Packages")
    mirrors = run([*apt, "indextargets", "--format", "$(REPO_URI)", *wanted]).splitlines()
    if not mirrors:
        raise SetupError("this system's apt does not use Debian's archive")
    sources = scratch / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYS} target=Packages] {mirrors[0]} {suite} main\n", encoding="utf-8")
    return [f"-oDir::Etc::sourcelist={sources}", "-oDir::Etc::sourceparts=-"]
