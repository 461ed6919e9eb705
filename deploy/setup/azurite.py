"""Installs Azurite, Microsoft's emulator of Azure's storage (MIT), into `.local/azurite`. Tests only.

The lock names the packages that its blob service loads, with their checksums: a third of what npm would unpack. A line
has the folder below `node_modules`, the version, and the SHA-512 as npm's own lock file has it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import (
    LOCAL,
    SetupError,
    find_program,
    hold_install_lock,
    run_installer,
    say,
    stage_folder,
)

ROOT = LOCAL / "azurite"
LOCK = Path(__file__).with_suffix(".lock")
NODE_ROOT = LOCAL / "node"
SCRIPT = "node_modules/azurite/dist/src/blob/main.js"
_REGISTRY = "https://registry.npmjs.org/"
_NEEDED = (".js", ".cjs", ".mjs", ".json", ".node", ".wasm", "LICENSE", "LICENSE.md", "LICENSE.txt")
_THREADS = 8
_TIMEOUT_S = 60
_STAMP = ".binlake-lock"


def find_node(root: Path = NODE_ROOT) -> Path | None:
    """Node: the system's, else the unpacked one; None if there is none."""
    unpacked = root / "usr/bin/node"
    return find_program("node") or (unpacked if unpacked.exists() else None)


def install(root: Path = ROOT) -> tuple[Path, Path]:
    """Make sure that Azurite is installed as the lock says; returns Node and its script. Raises SetupError."""
    node = debian.ensure_installed("node", "nodejs", NODE_ROOT, ("nodejs",), find_node)
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    with hold_install_lock("azurite"):
        stamp = root / _STAMP
        if not stamp.exists() or stamp.read_text() != wanted:
            say("azurite", f"downloading into {root}")
            with stage_folder(root) as tree:
                with ThreadPoolExecutor(_THREADS) as pool:
                    lines = LOCK.read_text(encoding="utf-8").splitlines()
                    list(pool.map(lambda line: _fetch(tree, *line.split(" ")), lines))
                (tree / _STAMP).write_text(wanted)
        return node, root / SCRIPT


def _fetch(tree: Path, folder: str, version: str, checksum: str) -> None:
    name = folder.rpartition("node_modules/")[2]
    url = f"{_REGISTRY}{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as source:
            archive = source.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise SetupError(f"{url} cannot be downloaded: {error}") from None
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != checksum:
        raise SetupError(f"{url} does not have the checksum of {LOCK.name}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for file in files:
            content = files.extractfile(file) if file.isfile() and file.name.endswith(_NEEDED) else None
            if content is not None:
                # Each archive has one folder, of any name.
                place = tree / "node_modules" / folder / file.name.partition("/")[2]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())


if __name__ == "__main__":
    sys.exit(run_installer("azurite", lambda: str(install()[1])))
