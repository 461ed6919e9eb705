"""The repository's structure: folders have content, required packages are used, promised docs exist."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Parsing all of it takes seconds.
_IMPORT = re.compile(r"^ *(?:from|import) ([\w.]+)", re.MULTILINE)
CODE = ("binlake", "pump_service", "spark_jobs", "plugins", "dags")


@functools.cache
def imports() -> dict[str, set[str]]:
    """Top-level modules that Binlake's code imports, with the importing files."""
    found: dict[str, set[str]] = {}
    for room in CODE:
        for path in (ROOT / room).rglob("*.py"):
            for name in _IMPORT.findall(path.read_text(encoding="utf-8")):
                found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize(
    ("room", "least"),
    [("dags", 1), ("plugins", 5), ("pump_service", 15), ("spark_jobs", 15), ("proto", 5), ("sql", 3), ("tests", 40)],
)
def test_each_folder_has_content(room: str, least: int) -> None:  # C-01
    kinds = {"proto": "*.proto", "sql": "*.sql"}
    assert len(list((ROOT / room).rglob(kinds.get(room, "*.py")))) >= least
    assert (ROOT / "docker-compose.yaml").stat().st_size > 500


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("airflow.sdk", "apache-airflow"),
        ("airflow.providers.apache.spark", "apache-airflow-providers-apache-spark"),
        ("pyspark.sql", "pyspark"),
        ("grpc", "grpcio"),
        ("google.protobuf", "protobuf"),
        ("plyvel", "plyvel"),
        ("pymysql", "pymysql"),
    ],
)
def test_each_required_package_is_installed_and_imported(module: str, package: str) -> None:  # C-02
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(line for lines in project["optional-dependencies"].values() for line in lines),
    ]
    assert [line for line in required if line.split("[")[0].split("=")[0].split(">")[0] == package]
    assert importlib.metadata.version(package)
    assert [name for name in imports() if name == module or name.startswith(module + ".")], module


def test_delta_spark_jars_have_the_packages_version() -> None:  # C-02
    version = importlib.metadata.version("delta-spark")
    assert [jar for jar in (ROOT / ".local" / "jars").glob("delta-spark_*.jar") if jar.stem.endswith(version)]
    session = (ROOT / "spark_jobs" / "engine" / "spark.py").read_text(encoding="utf-8")
    assert "io.delta.sql.DeltaSparkSessionExtension" in session


def test_compatibility_page_names_the_generation_and_the_writers() -> None:  # S1-04
    text = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    assert "*cluster* generation" in text
    assert "<= v8.3" in text


def test_readme_links_only_existing_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
