"""Puts MariaDB into `.local/mariadb` without root: Debian packages, downloaded and unpacked beside the checkout.

Standard library only, so that a bare `python3 deploy/setup/mariadb.py` works. Repeatable: what is there is kept.
The target of tests and demo; a `mariadbd` on the PATH is taken instead.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".local" / "mariadb"
PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-common", "libmariadb3")
# The server's libraries that a small system may lack, by the name the loader asks for.
LIBRARIES = {
    "libaio.so.1": "libaio1",
    "liburing.so.2": "liburing2",
    "libnuma.so.1": "libnuma1",
    "libsnappy.so.1": "libsnappy1v5",
    "libpcre2-8.so.0": "libpcre2-8-0",
    "libncurses.so.6": "libncurses6",
    "libtinfo.so.6": "libtinfo6",
    "libedit.so.2": "libedit2",
    "libbsd.so.0": "libbsd0",
    "libmd.so.0": "libmd0",
    "libssl.so.3": "libssl3",
    "libcrypto.so.3": "libssl3",
    "libsystemd.so.0": "libsystemd0",
    "liblz4.so.1": "liblz4-1",
    "liblzma.so.5": "liblzma5",
    "libzstd.so.1": "libzstd1",
    "libstdc++.so.6": "libstdc++6",
}


class SetupError(Exception):
    """The installation did not work; says which command failed and what it wrote."""


def server_binary() -> Path | None:
    """`mariadbd`: the one on the PATH, else the unpacked one; None when there is none."""
    on_path = shutil.which("mariadbd")
    if on_path:
        return Path(on_path)
    unpacked = ROOT / "usr/sbin/mariadbd"
    return unpacked if unpacked.exists() else None


def install(root: Path = ROOT) -> Path:
    """Make sure that a server is there and return it. Raises SetupError. One process installs, others wait for it."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / "mariadb.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = server_binary()
        if found is None:
            _download_and_unpack(root)
            found = root / "usr/sbin/mariadbd"
        return found


def library_path(root: Path = ROOT) -> str:
    """LD_LIBRARY_PATH for the unpacked programs (folders of libraries below `root`)."""
    folders = [*(root / "usr/lib").glob("*-linux-gnu*"), *(root / "lib").glob("*-linux-gnu*")]
    return ":".join(str(folder) for folder in folders)


def _download_and_unpack(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="mariadb-setup-") as scratch:
        work = Path(scratch)
        apt = _private_apt(work)
        _run([*apt, "update"], work)
        tree = work / "tree"
        _fetch(apt, PACKAGES, work, tree)
        missing = _missing_libraries(tree)
        if missing:
            _fetch(apt, sorted({_package_of(name) for name in missing}), work, tree)
        if root.exists():
            shutil.rmtree(root)
        # One rename: an interrupted run leaves nothing that looks installed.
        tree.rename(root)


def _private_apt(work: Path) -> list[str]:
    lists, cache = work / "lists", work / "cache"
    for folder in (lists / "partial", cache / "archives/partial"):
        folder.mkdir(parents=True)
    return [
        "apt-get",
        "-qq",
        f"-oDir::State::lists={lists}",
        f"-oDir::Cache={cache}",
        # Without root there is no `_apt` user to switch to.
        "-oAPT::Sandbox::User=",
    ]


def _fetch(apt: list[str], packages: tuple[str, ...] | list[str], work: Path, tree: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=work))
    _run([*apt, "download", *packages], folder)
    for package in sorted(folder.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(tree)], folder)


def _missing_libraries(tree: Path) -> set[str]:
    missing: set[str] = set()
    for program in ("usr/sbin/mariadbd", "usr/bin/mariadb", "usr/bin/my_print_defaults"):
        listing = subprocess.run(
            ["ldd", str(tree / program)],
            env={"LD_LIBRARY_PATH": library_path(tree), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        missing |= {line.split()[0] for line in listing.splitlines() if "not found" in line}
    return missing


def _package_of(library: str) -> str:
    if library not in LIBRARIES:
        raise SetupError(f"mariadbd needs {library}: install its package, or add it to LIBRARIES in {__file__}")
    return LIBRARIES[library]


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SetupError(f"{command[0]} is missing: this needs Debian's tools; or put mariadbd on the PATH") from None
    if done.returncode:
        raise SetupError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()[-800:]}")


def main() -> int:
    """Install, say what is there and how long it took (seconds)."""
    started = time.monotonic()
    try:
        binary = install()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"mariadb: {binary} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
