"""Installs axe-core, an accessibility checker (MPL-2.0), into `.local/axe`: with npm if available, else over HTTPS.

The tests run it inside the pages. The file must have the SHA-256 given here.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path

from deploy.setup.common import (
    LOCAL,
    SetupError,
    find_program,
    hold_install_lock,
    run,
    run_installer,
    say,
    stage_folder,
)

ROOT = LOCAL / "axe"
VERSION = "4.14.1"
SCRIPT = "axe.min.js"
SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_ARCHIVE = f"axe-core-{VERSION}.tgz"
_URL = f"https://registry.npmjs.org/axe-core/-/{_ARCHIVE}"
_TIMEOUT_S = 60


def install(root: Path = ROOT) -> Path:
    """Make sure that the script is installed and undamaged; returns its path. Raises SetupError."""
    with hold_install_lock("axe"):
        script = root / SCRIPT
        if not _fits(script):
            say("axe", f"downloading axe-core into {root}")
            with stage_folder(root) as tree:
                _fetch(tree)
        return script


def _fits(script: Path) -> bool:
    return script.exists() and hashlib.sha256(script.read_bytes()).hexdigest() == SHA256


def _fetch(tree: Path) -> None:
    problems = []
    for way in (_download_by_npm, _download_by_https):
        try:
            way(tree)
            _unpack(tree)
            return
        except (SetupError, OSError, tarfile.TarError, KeyError) as error:
            problems.append(f"{way.__name__.removeprefix('_download_by_')}: {error}")
    raise SetupError("; ".join(problems))


def _unpack(tree: Path) -> None:
    archive = tree / _ARCHIVE
    with tarfile.open(archive) as files:
        for name in (SCRIPT, "LICENSE"):
            source = files.extractfile(f"package/{name}")
            if source is None:
                raise SetupError(f"{_ARCHIVE} has no {name}")
            (tree / name).write_bytes(source.read())
    archive.unlink()
    if not _fits(tree / SCRIPT):
        raise SetupError(f"its checksum is not the expected one: {SCRIPT}")


def _download_by_npm(tree: Path) -> None:
    if find_program("npm") is None:
        raise SetupError("npm is not installed")
    run(["npm", "pack", "--silent", f"axe-core@{VERSION}"], tree)


def _download_by_https(tree: Path) -> None:
    with urllib.request.urlopen(_URL, timeout=_TIMEOUT_S) as source, (tree / _ARCHIVE).open("wb") as out:
        shutil.copyfileobj(source, out)


if __name__ == "__main__":
    sys.exit(run_installer("axe", lambda: str(install())))
