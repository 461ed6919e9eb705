"""The installers of Java and of Spark's jars refuse what is too old, and fetch damaged or incomplete files again."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.programs import program

from deploy.setup import common, jars, java
from deploy.setup.common import REPOSITORY, SetupError


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `.local` folder for the test: locks and trees."""
    monkeypatch.setattr(common, "LOCAL", tmp_path / "local")
    return tmp_path / "local"


@pytest.mark.parametrize(
    ("said", "version"), [('openjdk version "17.0.2" 2022-01-18', 17), ('openjdk version "25" 2025-09-16', 25)]
)
def test_java_17_or_newer_is_accepted(said: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin/java", f"echo '{said}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.check() == f"{tmp_path}/bin/java (version {version})"


@pytest.mark.parametrize(
    ("said", "complaint"), [('java version "1.8.0_402"', "is Java 8, Spark needs 17"), ("whatever", "does not report")]
)
def test_older_java_is_refused(said: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin/java", f"echo '{said}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match=complaint):
        java.check()


def test_wrong_java_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="has no bin/java"):
        java.check()


def test_missing_java_ends_make_setup_with_one_line(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("make", "sh", "bash", "echo", "awk"):
        (folder / name).symlink_to(shutil.which(name) or name)
    (folder / "python3.11").symlink_to(os.path.realpath(sys.executable))
    done = subprocess.run(
        [folder / "make", "setup"], cwd=tmp_path, env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if not line.startswith("make: ")]
    assert told == [
        "error: java: Java is not installed: install it (Debian: apt-get install openjdk-17-jre-headless)"
        " or set JAVA_HOME",
        "setup: not ready: java failed",
    ]
    assert not (tmp_path / ".venv").exists()


# The jars: whatever downloads them, they must be the tested ones.


@contextmanager
def central(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Maven Central on this machine."""
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(jars, "CENTRAL", f"http://127.0.0.1:{server.server_address[1]}")
        yield
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args


def one_jar(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = b"jar", said: bytes = b"jar") -> jars.Jar:
    jar = jars.Jar("org.example", "thing", "1.0", hashlib.sha256(said).hexdigest())
    path = folder / "org/example/thing/1.0" / jar.file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    monkeypatch.setattr(jars, "JARS", (jar,))
    return jar


def test_jars_are_downloaded_by_https_without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = one_jar(tmp_path / "central", monkeypatch)
    monkeypatch.setattr(jars, "find_program", lambda _: None)
    with central(tmp_path / "central", monkeypatch):
        folder = jars.install(tmp_path / "jars")
    assert jar.fits(folder)
    # The server has stopped: a second run needs none.
    assert jars.install(tmp_path / "jars") == folder


def test_jar_with_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_jar(tmp_path / "central", monkeypatch, content=b"something else")
    monkeypatch.setattr(jars, "find_program", lambda _: None)
    with central(tmp_path / "central", monkeypatch), pytest.raises(SetupError) as told:
        jars.install(tmp_path / "jars")
    assert str(told.value) == "maven: mvn is not installed; https: its checksum is not the expected one: thing-1.0.jar"
    assert not (tmp_path / "jars").exists()


def test_incomplete_jar_is_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = one_jar(tmp_path / "central", monkeypatch)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / jar.file).write_bytes(b"j")
    monkeypatch.setattr(jars, "find_program", lambda _: None)
    with central(tmp_path / "central", monkeypatch):
        assert jar.fits(jars.install(tmp_path / "jars"))


def test_failing_maven_falls_back_to_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = one_jar(tmp_path / "central", monkeypatch)
    program(tmp_path / "bin/mvn", "echo '[ERROR] no route' ; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with central(tmp_path / "central", monkeypatch):
        assert jar.fits(jars.install(tmp_path / "jars"))


def test_jars_of_this_checkout_are_complete() -> None:
    assert all(jar.fits(jars.ROOT) for jar in jars.JARS), "run `make setup`"


# uv and the packages.
