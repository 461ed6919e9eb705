"""Import cycles of any length are found, between files and between packages; import contracts detect violations."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.importgraph import derive_package_edges, find_circles, import_edges

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}, [["a", "b", "c"], ["d", "e"]]),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}, []),
        ({"a": {"a"}}, []),
    ],
    ids=["chain", "pair", "two cycles", "diamond", "self import"],
)
def test_cycles_are_found_completely(edges: dict[str, set[str]], found: list[list[str]]) -> None:
    assert find_circles(edges) == found


def test_package_cycles_without_file_cycles_are_found() -> None:
    edges = {"binlake.a.x": {"binlake.b.x"}, "binlake.b.y": {"binlake.a.y"}, "binlake.a.y": set(), "binlake.b.x": set()}
    assert find_circles(edges) == []
    assert find_circles(derive_package_edges(edges)) == [["binlake.a", "binlake.b"]]


def test_code_has_no_import_cycles() -> None:
    edges = import_edges()
    assert len(edges) > 400
    assert find_circles(edges) == find_circles(derive_package_edges(edges)) == []


FORBIDDEN = {
    "binlake.pump_service.pump.service -> pyspark": ("import pyspark", "Pumps run without"),
    "binlake.pump_service.pump.storage -> binlake.lake.paths": ("import binlake.lake.paths", "Pumps run without"),
    "binlake.rows.schema.info -> pandas": ("import pandas", "The core imports no shell"),
    "binlake.window.plan -> airflow": ("from airflow.sdk import DAG", "The core imports no shell"),
    "binlake_airflow.dags.dagparts -> delta": ("import delta", "Only the Spark shell imports Spark"),
    "binlake.spark_jobs.stages.finalize -> binlake.spark_jobs.stages.convert": (
        "import binlake.spark_jobs.stages.convert",
        "Stages do not import",
    ),
    "binlake.rows.schema.job -> binlake.window.plan": ("import binlake.window.plan", "Rooms of the core"),
}
"""A line to add to the module, and the contract that it breaks."""


@pytest.mark.long
def test_forbidden_imports_are_found(tmp_path: Path) -> None:
    for room in ("binlake", "deploy", "sql", "plugins/binlake_airflow"):
        shutil.copytree(ROOT / room, tmp_path / room.removeprefix("plugins/"), ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for chain, (line, _) in FORBIDDEN.items():
        file = tmp_path / f"{chain.partition(' ')[0].replace('.', '/')}.py"
        file.write_text(file.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [row for row in done.stdout.splitlines() if " BROKEN" in row]
    for chain, (_, contract) in FORBIDDEN.items():
        assert chain in done.stdout
        assert [row for row in broken if row.startswith(contract)], done.stdout
