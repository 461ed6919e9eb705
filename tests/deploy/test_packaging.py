"""The package's metadata: ranges and no pins, an extra for each kind of host, one clear line if one is missing."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from binlake import cli
from binlake.common import installation, sql
from binlake.common.localfiles import describe_os_error
from binlake.config import load, load_replication
from binlake.config.load import check_replication
from binlake.pump_service.feeder.settings import read_settings
from binlake_airflow.command import find_dag_files
from binlake_airflow.provider import get_provider_info
from deploy import licenses

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = {"binlake": ROOT, "binlake_airflow": ROOT / "plugins"}
# A statement of this repository's format: one line, or names in parentheses. Indented: imported late, or for types.
_IMPORT = re.compile(r"^( *)(?:from ([\w.]+) import (\([^)]*\)|[^\n#]*)|import ([\w.]+))", re.MULTILINE)
_DISTRIBUTIONS = {
    "airflow": "apache-airflow",
    "confluent_kafka": "confluent-kafka",
    "delta": "delta-spark",
    "google": "protobuf",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-sdk",
    "pydantic_core": "pydantic",
    "yaml": "pyyaml",
}
_BY_AIRFLOW = {"fastapi", "jinja2", "markupsafe", "sqlalchemy", "starlette", "opentelemetry", "openlineage"}
"""What the Airflow shell imports and Airflow, or its own provider of lineage, installs."""


def list_packages(*names: str) -> set[str]:
    """The packages that the base and the extras `names` install, without what those depend on."""
    found: set[str] = set()
    for line in [
        *PROJECT["dependencies"],
        *(line for name in names for line in PROJECT["optional-dependencies"][name]),
    ]:
        package = re.split(r"[\[<>=~! ;]", line)[0]
        inner = re.search(r"\[(.*)\]", line)
        found |= list_packages(*inner[1].split(",")) if package == "binlake" and inner else {package}
    return found


@functools.cache
def list_imports(module: str) -> tuple[tuple[str, bool], ...]:
    """The modules that `module` imports, each with whether it is imported at once."""
    file = find_file(module)
    return tuple(_read_imports(file.read_text(encoding="utf-8"))) if file else ()


def _read_imports(text: str) -> Iterator[tuple[str, bool]]:
    for indent, base, names, plain in _IMPORT.findall(text):
        yield plain or base, not indent
        for name in re.findall(r"(\w+)(?: as \w+)?", names):
            if find_file(f"{base}.{name}"):
                yield f"{base}.{name}", not indent


@functools.cache
def find_file(module: str) -> Path | None:
    root = OWN.get(module.split(".")[0])
    at = root and root / module.replace(".", "/")
    return next((file for file in (at.with_suffix(".py"), at / "__init__.py") if file.exists()), None) if at else None


def find_foreign(module: str) -> set[str]:
    """The foreign top-level modules that loading `module` imports, through all of Binlake's own."""
    seen, left = set[str](), [module]
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        if find_file(one):
            left += [name for name, at_once in list_imports(one) if at_once]
            left += [one.rpartition(".")[0]] if "." in one else []
    tops = {one.split(".")[0] for one in seen}
    return tops - set(OWN) - sys.stdlib_module_names - {""}


def find_distribution(module: str) -> str:
    return _DISTRIBUTIONS.get(module, module)


def test_versions_are_ranges_and_only_the_lock_pins() -> None:
    lines = [*PROJECT["dependencies"], *(line for group in PROJECT["optional-dependencies"].values() for line in group)]
    assert [line for line in lines if "==" in line] == []
    assert [line for line in lines if not re.search(r">=|\[", line)] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *PROJECT["entry-points"]["binlake.commands"].items(),
        *PROJECT["entry-points"]["binlake.checks"].items(),
        *PROJECT["entry-points"]["binlake.orchestration"].items(),
        ("binlake", "binlake.cli:main"),
    ],
)
def test_extra_of_a_command_installs_what_it_imports(name: str, value: str) -> None:
    point = EntryPoint(name, value, "binlake.commands")
    installed = list_packages(*point.extras)
    needed = {find_distribution(module) for module in find_foreign(point.module)}
    assert needed - installed == set()


def test_walk_finds_imports_of_imports() -> None:
    assert {"plyvel", "grpc", "google_crc32c", "pydantic"} <= find_foreign("binlake.pump_service.pump.command")


def test_each_late_import_has_an_extra() -> None:
    modules = [
        (name, ".".join(file.relative_to(root / name).with_suffix("").parts))
        for name, root in OWN.items()
        for file in (root / name).rglob("*.py")
    ]
    found = {
        target.split(".")[0]
        for name, rest in modules
        for target, _ in list_imports(f"{name}.{rest}".removesuffix(".__init__"))
    }
    foreign = found - set(OWN) - sys.stdlib_module_names
    unknown = {
        module
        for module in foreign - _BY_AIRFLOW
        if find_distribution(module) not in list_packages() and module not in installation.EXTRAS
    }
    assert "pyspark" in foreign
    assert unknown == set()


@pytest.mark.parametrize("module", sorted(installation.EXTRAS))
def test_extra_that_an_error_names_installs_the_module(module: str) -> None:
    for extra in installation.EXTRAS[module]:
        assert find_distribution(module) in list_packages(extra)


def test_pump_host_gets_neither_airflow_nor_spark_nor_arrow() -> None:
    banned = {"apache-airflow", "pyspark", "pyspark-client", "pandas", "pyarrow", "deltalake"}
    assert list_packages("pump") & banned == set()
    assert banned <= list_packages("all")


def test_missing_extra_is_one_line_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "lacking_pyarrow.py").write_text("raise ModuleNotFoundError('no', name='pyarrow.compute')\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("feeder", "lacking_pyarrow:Command [feeder]", cli.GROUP)]
    monkeypatch.setattr(cli, "entry_points", lambda **_: points)
    assert cli.run(["feeder"]) == 1
    assert capsys.readouterr().err == (
        "error: `binlake feeder` needs the extra `feeder` [missing=pyarrow] Hint: pip install 'binlake[feeder]'\n"
    )


def test_module_of_no_extra_that_is_missing_is_a_fault_of_the_program() -> None:
    assert installation.explain_missing(ModuleNotFoundError("no", name="nothing_of_ours")) is None
    assert installation.explain_missing(ImportError("no", name="pyspark")) is None
    assert "extra `spark`" in str(installation.explain_missing(ModuleNotFoundError("no", name="pyspark.sql")))


_HIDING = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"hidden: {{name}}", name=name)

sys.meta_path.insert(0, Hide())
from binlake.cli import run
sys.exit(run(sys.argv[1:]))
"""


def test_disk_error_of_a_pump_host_is_still_one_line(tmp_path: Path) -> None:
    hidden = set(installation.EXTRAS) - {"plyvel"}
    command = [sys.executable, "-c", _HIDING.format(hidden=hidden), "pump", "--config", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert str(describe_os_error(OSError("closed"))).startswith("closed Hint: ")


def test_two_versions_of_pyspark_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"pyspark": "4.2.0", "pyspark-client": "4.1.3"}
    monkeypatch.setattr(installation, "find_version", lambda name: found.get(name, ""))
    with pytest.raises(installation.ConfigError, match=r"pyspark=4\.2\.0 pyspark-client=4\.1\.3"):
        installation.require_one_pyspark()
    found["pyspark-client"] = "4.2.0"
    installation.require_one_pyspark()


def test_provider_says_what_airflow_requires() -> None:
    info = get_provider_info()
    assert info["package-name"] == PROJECT["name"]
    assert {"name", "description", "versions"} <= set(info)


def test_dag_files_and_sql_are_found_in_a_checkout() -> None:
    assert [file.name for file in find_dag_files()] == ["binlake_broken.py", "binlake_replications.py"]
    assert all("CREATE TABLE" in sql.read_statement(name) for name in (*sql.TABLES, *sql.LATER))


def test_installed_package_has_its_replications_beside_airflows_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(load.FOLDER_ENV, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "af"))
    assert load.find_replications_folder() == ROOT / "replications"
    monkeypatch.setattr(load, "_REPOSITORY", tmp_path)
    assert load.find_replications_folder() == tmp_path / "af" / "replications"


def test_version_shows_binlake_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.run(["--version"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"binlake {PROJECT['version']}"
    assert lines[-1].startswith("python 3.")


def test_each_package_says_its_licence() -> None:
    packages = licenses.find_packages("binlake", {"all"})
    assert {"pyspark", "apache-airflow", "plyvel", "deltalake"} <= set(packages)
    assert [name for name, package in packages.items() if not licenses.read_license(package)] == []


def test_readmes_replication_is_valid_and_its_commands_exist(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## A replication") : text.index("## See it")]
    example = section.split("```toml\n")[1].split("```")[0]
    file = tmp_path / "orders.toml"
    file.write_text(example, encoding="utf-8")
    assert len(example.splitlines()) <= 16
    assert load_replication(file, secrets=False).name == "orders"
    commands = re.findall(r"^binlake (.*?) +#", section, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        cli.prepare(command.split())


def test_tutorials_files_are_valid_and_its_commands_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # make soak executes the page: tests/e2e/test_own_replication.py
    text = (ROOT / "docs" / "start" / "own-replication.md").read_text(encoding="utf-8")
    feeder, orders = (tmp_path / name for name in ("feeder.toml", "orders.toml"))
    for file, example in zip((feeder, orders), re.findall(r"```toml\n(.*?)```", text, re.DOTALL), strict=True):
        file.write_text(example, encoding="utf-8")
    for name in ("SOURCE_PASSWORD", "TARGET_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    assert [source.name for source in read_settings(feeder).source] == ["old"]
    assert check_replication(orders).name == "orders"
    commands = re.findall(r"^binlake (.*)$", text, re.MULTILINE)
    assert len(commands) == 7
    monkeypatch.chdir(tmp_path)
    for command in commands:
        cli.prepare(command.split())


def test_changes_name_the_version_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([\d.]+)\]", text, re.MULTILINE)
    assert newest is not None
    assert PROJECT["version"].startswith(newest[1])
