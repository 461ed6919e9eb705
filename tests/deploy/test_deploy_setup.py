"""The installers keep what exists; an interrupted run leaves nothing; a failure is one line with a hint."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.programs import program

from deploy.setup import __main__ as setup
from deploy.setup import common, compose, debian, etcd, mariadb, mysql, packages, postgres
from deploy.setup.common import SetupError, hold_install_lock, run_installer, stage_folder


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `.local` folder for the test: locks and trees."""
    monkeypatch.setattr(common, "LOCAL", tmp_path / "local")
    return tmp_path / "local"


# An unfinished installation never looks finished.


def test_tree_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "tree"
    with pytest.raises(KeyboardInterrupt):
        _interrupt(target)
    assert list(tmp_path.iterdir()) == []
    with stage_folder(target) as tree:
        (tree / "whole").touch()
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tree-setup-abc/tree/half").mkdir(parents=True)
    with stage_folder(tmp_path / "tree"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def _interrupt(target: Path) -> None:
    with stage_folder(target) as tree:
        (tree / "half").touch()
        raise KeyboardInterrupt


def test_tree_is_replaced_not_merged(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/old").touch()
    with stage_folder(tmp_path / "tree") as tree:
        (tree / "new").touch()
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["new"]


def test_concurrent_runs_install_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = []

    def unpack(names: tuple[str, ...], tree: Path, suite: str) -> None:
        assert suite == ""
        unpacked.append(names)
        program(tree / "usr/bin/etcd", "exit 0")

    monkeypatch.setattr(debian, "unpack", unpack)
    monkeypatch.setattr(etcd, "find_program", lambda _: None)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(etcd.install, [tmp_path / "etcd"] * 4))
    assert found == {tmp_path / "etcd/usr/bin/etcd"}
    assert len(unpacked) == 1


def test_lock_of_a_dead_process_does_not_block(local: Path) -> None:
    local.mkdir()
    (local / "x.lock").touch()
    with hold_install_lock("x"):
        pass


# The system's programs are used if they exist; for missing ones, the error says how to get them.


@pytest.mark.parametrize(("installer", "name"), [(mariadb, "mariadbd"), (etcd, "etcd")])
def test_systems_server_is_preferred(
    installer: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "bin" / name, "exit 0")
    monkeypatch.setenv("PATH", str(own.parent))
    assert installer.install(tmp_path / "none") == own  # type: ignore[attr-defined]


@pytest.mark.parametrize("installer", [mariadb, etcd, compose])
def test_without_apt_the_error_says_what_to_install(
    installer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "find_program", lambda _: None)
    monkeypatch.setattr(debian, "find_program", lambda _: None)
    with pytest.raises(
        SetupError, match=r"this system has no apt; install (MariaDB|etcd|Docker) .* with the system's package"
    ):
        installer.install(tmp_path / "none")  # type: ignore[attr-defined]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("docker", "echo 2.40.3", ["docker", "compose"]),
        ("docker", "echo v5.1.0", ["docker", "compose"]),
        ("docker", 'echo "docker: unknown command: docker compose" >&2; exit 1', []),
        ("docker-compose", "echo 2.26.1-4", ["docker-compose"]),
        ("docker-compose", "echo 1.29.2", []),
        ("docker-compose", "echo unknown", []),
    ],
)
def test_systems_docker_compose_is_used_from_version_2(
    name: str, said: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "bin" / name, said)
    monkeypatch.setattr(compose, "find_program", lambda wanted: own if wanted == name else None)
    assert compose.find_command(tmp_path / "none") == [str(own), *words[1:]][: len(words)]


def test_package_missing_in_this_release_comes_from_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "echo http://mirror.example/debian/; echo http://other.example/debian/"
    # The arguments of apt, and the sources that it uses instead of the system's.
    program(
        tmp_path / "bin/apt-get",
        f'echo "$@" >> {tmp_path}/asked\ncase "$*" in *indextargets*) {told};; esac\n'
        f'for word; do case "$word" in -oDir::Etc::sourcelist=*) cp "${{word#*=}}" {tmp_path}/sources;; esac; done',
    )
    program(tmp_path / "bin/dpkg", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    debian.unpack(["thing"], tmp_path / "tree", "trixie")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked] == ["update", "Packages", "update", "thing"]
    assert [line.count("-oDir::Etc::sourceparts=-") for line in asked] == [0, 0, 1, 1]
    (source,) = (tmp_path / "sources").read_text().splitlines()
    assert source.startswith("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg ")
    assert source.endswith("] http://mirror.example/debian/ trixie main")


def test_system_other_than_debian_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apt-get", "dpkg"):
        program(tmp_path / "bin" / name, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(compose, "find_program", lambda _: None)
    with pytest.raises(SetupError, match=r"does not use Debian's archive; install Docker Compose 2 with the system's"):
        compose.install(tmp_path / "none")


def test_postgres_on_the_path_is_used_with_its_initdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_SYSTEM", tmp_path / "none")
    own, link = program(tmp_path / "own/postgres", "exit 0"), tmp_path / "bin/postgres"
    link.parent.mkdir()
    link.symlink_to(own)
    monkeypatch.setenv("PATH", str(link.parent))
    assert postgres.find_server(tmp_path / "none") is None
    program(tmp_path / "own/initdb", "exit 0")
    assert postgres.install(tmp_path / "none") == own


def test_newest_postgres_that_airflow_supports_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_program", lambda _: None)
    monkeypatch.setattr(postgres, "_SYSTEM", tmp_path)
    monkeypatch.setattr(debian, "find_program", lambda _: None)
    versions = tmp_path / "usr/lib/postgresql"
    for name in ("9.6/bin/postgres", "13/bin/postgres", "18/bin/psql"):
        program(versions / name, "exit 0")
    with pytest.raises(SetupError, match=r"no apt; install PostgreSQL 14 or newer with the system's package"):
        postgres.install(tmp_path / "none")
    found = [program(versions / version / "bin/postgres", "exit 0") for version in ("9", "15", "17")]
    assert postgres.install(tmp_path / "none") == found[-1]
    unpacked = program(tmp_path / "unpacked/usr/lib/postgresql/15/bin/postgres", "exit 0")
    monkeypatch.setattr(postgres, "_SYSTEM", tmp_path / "none")
    assert postgres.install(tmp_path / "unpacked") == unpacked


def test_mysql_of_a_newer_release_runs_with_its_own_loader_and_only_needed_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "find_program", lambda _: None)
    server = program(tmp_path / "usr/sbin/mysqld", "exit 0")
    assert mysql.find_server_command(tmp_path) == []
    loader = program(tmp_path / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "exit 0")
    for name in ("usr/share/mysql/errmsg.sys", "usr/share/doc/mysql/README", "usr/bin/gmake", "var/log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "lib").symlink_to("usr/lib")
    words = mysql.install(tmp_path)
    assert (words[0], words[1], words[-1]) == (str(loader), "--library-path", str(server))
    left = {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()}
    assert left == {"usr/sbin/mysqld", "usr/share/mysql/errmsg.sys", str(loader.relative_to(tmp_path))}
    assert (tmp_path / "lib").exists()
    own = program(tmp_path / "own/mysqld", "echo mysqld Ver 8.0.40")
    monkeypatch.setattr(mysql, "find_program", lambda _: own)
    assert mysql.find_server_command(tmp_path) == [str(own)]
    program(tmp_path / "own/mysqld", "echo mysqld Ver 10.11-MariaDB")
    assert mysql.find_server_command(tmp_path) == words


def test_failing_command_is_reported_with_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    def install() -> str:
        return common.run(["sh", "-c", "echo no space left >&2; exit 3"])

    assert run_installer("thing", install) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: thing: `sh -c")
    assert "failed (3): no space left" in told
    assert told.count("\n") == 1


def test_failing_part_stops_only_its_dependents(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> str:
        raise SetupError("no network")

    names = (
        "java",
        "packages",
        "bytecode",
        "jars",
        "etcd",
        "kafka",
        "apicurio",
        "moto",
        "azurite",
        "compose",
        "nghttp2",
        "mysql",
    )
    parts = {name: (name, lambda name=name: f"{name} is there") for name in names}
    monkeypatch.setattr(setup, "_JAVA", parts["java"])
    monkeypatch.setattr(setup, "_CHAINS", ((("uv", fails), parts["packages"]), (parts["jars"],)))
    monkeypatch.setattr(setup, "_BYTECODE", parts["bytecode"])
    monkeypatch.setattr(setup, "_ETCD", parts["etcd"])
    monkeypatch.setattr(setup, "_KAFKA", parts["kafka"])
    monkeypatch.setattr(setup, "_APICURIO", parts["apicurio"])
    monkeypatch.setattr(setup, "_MOTO", parts["moto"])
    monkeypatch.setattr(setup, "_AZURITE", parts["azurite"])
    monkeypatch.setattr(setup, "_COMPOSE", parts["compose"])
    monkeypatch.setattr(setup, "_MYSQL", parts["mysql"])
    monkeypatch.setattr(setup, "_NGHTTP2", parts["nghttp2"])
    monkeypatch.setattr(setup, "_BROWSER", ())
    assert setup.main([]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == ["error: uv: no network", "setup: not ready: uv failed"]
    others = set(names) - {"packages", "bytecode"}
    assert {line.split(":")[0] for line in said.out.splitlines()} == others
    monkeypatch.setattr(setup, "_CHAINS", ((parts["packages"],), (parts["jars"],)))
    assert setup.main(["--without-tests"]) == 0
    ready = capsys.readouterr().out
    assert {line.split(":")[0] for line in ready.splitlines()} == {"java", "packages", "jars", "setup"}
    assert "setup: ready" in ready


# Java.


def test_missing_venv_module_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = program(tmp_path / "python3", "echo 'ensurepip is not available' >&2; exit 1")
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(SetupError, match=r"venv is missing: apt-get install python3\.11-venv"):
        packages.install_uv(tmp_path / "tools")


def test_packages_are_synced_only_when_the_lock_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("uv.lock", "pyproject.toml"):
        (tmp_path / name).write_text("one")
    venv = tmp_path / ".venv"
    uv = program(
        tmp_path / "uv", f'echo "$UV_SYSTEM_CERTS $@" >> {tmp_path}/calls; mkdir -p {venv}/bin; touch {venv}/bin/python'
    )
    monkeypatch.delenv("UV_SYSTEM_CERTS", raising=False)
    monkeypatch.setattr(packages, "REPOSITORY", tmp_path)
    monkeypatch.setattr(packages, "_STAMP", venv / ".stamp")
    monkeypatch.setattr(packages, "install_uv", lambda: uv)
    (tmp_path / "thing.egg-info").mkdir()
    packages.sync(venv)
    packages.sync(venv)
    assert not (tmp_path / "thing.egg-info").exists()
    (tmp_path / "uv.lock").write_text("two")
    packages.sync(venv)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert all(call.startswith("1 sync --frozen") for call in calls)


def test_failed_sync_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("uv.lock", "pyproject.toml"):
        (tmp_path / name).write_text("one")
    uv = program(tmp_path / "uv", f"echo x >> {tmp_path}/calls; echo 'no network' >&2; exit 2")
    monkeypatch.setattr(packages, "REPOSITORY", tmp_path)
    monkeypatch.setattr(packages, "_STAMP", tmp_path / ".stamp")
    monkeypatch.setattr(packages, "install_uv", lambda: uv)
    for _ in range(2):
        with pytest.raises(SetupError, match="no network"):
            packages.sync(tmp_path / ".venv")
    assert (tmp_path / "calls").read_text() == "x\nx\n"
