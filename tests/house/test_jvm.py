"""A JVM of Spark starts with the class archive if it exists, and otherwise without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.common import installation
from binlake.errors import ConfigError
from deploy.setup import classes, common


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(installation.JARS_ENV, str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_jvm_without_an_archive_gets_no_option() -> None:
    assert installation.archive_options() == ""
    assert installation.format_short_lived_options() == installation.SHORT_LIVED


def test_archive_next_to_the_jars_is_used(folder: Path) -> None:
    (folder / "delta.jar").touch()
    (folder / installation.ARCHIVE).touch()
    assert installation.archive_options().split()[0] == f"-XX:SharedArchiveFile={folder}/classes.jsa"
    assert installation.format_short_lived_options() == f"{installation.SHORT_LIVED} {installation.archive_options()}"
    assert installation.list_delta_jars() == [f"{folder}/delta.jar"]


def test_folder_without_jars_is_an_error_that_names_it(folder: Path) -> None:
    with pytest.raises(ConfigError, match=str(folder)):
        installation.list_delta_jars()


def test_path_that_would_be_two_options_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / installation.ARCHIVE).touch()
    monkeypatch.setenv(installation.JARS_ENV, str(tmp_path / "a b"))
    assert installation.archive_options() == ""


def test_installer_writes_the_archive_where_the_jvm_looks_for_it() -> None:
    assert classes.ARCHIVE == installation.DEFAULT_JARS / installation.ARCHIVE


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the archives that the installer has written; they are dummies."""
    made: list[str] = []

    def write(command: list[str], *_: object) -> str:
        made.append(command[-1])
        Path(command[-1]).write_text("classes")
        return ""

    monkeypatch.setattr(common, "LOCAL", tmp_path / "local")
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "classes.jsa")
    monkeypatch.setattr(classes, "_STAMP", tmp_path / "classes.txt")
    monkeypatch.setattr(classes, "run", write)
    monkeypatch.setattr(classes.packages, "sync", lambda: "")
    monkeypatch.setattr(classes.jars, "install", lambda: tmp_path)
    return made


def test_archive_is_written_once_per_jvm_and_packages(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [classes.install(), classes.install()] == [str(tmp_path / "classes.jsa")] * 2
    assert made == [str(tmp_path / "classes.new")]
    monkeypatch.setattr(classes.java, "read_version", lambda _: "another JVM")
    classes.install()
    classes.install()
    assert len(made) == 2
    (tmp_path / "classes.jsa").unlink()
    classes.install()
    assert len(made) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classes.jsa", "classes.txt", "local"]
