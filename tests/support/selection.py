"""Select and order the tests of a run, by the marks that say what each test needs."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

COSTS = ("long", "process", "mariadb", "spark", "airflow", "e2e")
"""Marks that exclude a test from `make test-quick`, the cheapest first."""
# Importing Airflow alone takes seconds.
_SLOW_IMPORTS = ("airflow", "binlake_airflow")
_BY_FIXTURE = {
    "mariadb": "mariadb",
    "second_mariadb": "mariadb",
    "mariadb_source": "mariadb",
    "mysql": "mariadb",
    "mysql_target": "mariadb",
    "server": "mariadb",
    "followed": "mariadb",
    "spark": "spark",
    "etcd_url": "process",
    "kafka": "process",
    "secured": "process",
    "schema_registry": "process",
    "s3": "process",
    "airflow_db": "airflow",
}


def mark_by_fixtures(items: Sequence[pytest.Item]) -> None:
    """Add the mark of a server to every test that uses a fixture of it."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if (mark := _BY_FIXTURE.get(fixture)) and item.get_closest_marker(mark) is None:
                item.add_marker(mark)


def cost(item: pytest.Item) -> int:
    """0 for a quick test, otherwise the position in COSTS of its most expensive mark, from 1."""
    return max((1 + n for n, mark in enumerate(COSTS) if item.get_closest_marker(mark)), default=0)


def cheapest_first(items: list[pytest.Item]) -> None:
    """Sort for a run in one process: quick tests fail first."""
    items.sort(key=cost)


def dearest_file_first(items: list[pytest.Item]) -> None:
    """Sort for workers that take whole files: a long file at the end would leave the other workers idle."""
    dearest: dict[Path, int] = {}
    for item in items:
        dearest[item.path] = max(dearest.get(item.path, 0), cost(item))
    items.sort(key=lambda item: -dearest[item.path])


def is_costly_as_a_whole(path: Path) -> bool:
    """True if `pytestmark` names one of COSTS or the file imports Airflow, so that a quick run need not import it."""
    text = path.read_text(encoding="utf-8")
    # Only files that match are parsed, which keeps this below a second.
    if not any(f"\n{begin}" in text for begin in ("pytestmark = ", *(f"from {name}" for name in _SLOW_IMPORTS))):
        return False
    body = ast.parse(text).body
    modules = {str(node.module).partition(".")[0] for node in body if isinstance(node, ast.ImportFrom)}
    assigned = (node for node in body if isinstance(node, ast.Assign))
    marks = (node.value for node in assigned if any(getattr(one, "id", "") == "pytestmark" for one in node.targets))
    names = {node.attr for node in chain.from_iterable(map(ast.walk, marks)) if isinstance(node, ast.Attribute)}
    return not (names.isdisjoint(COSTS) and modules.isdisjoint(_SLOW_IMPORTS))
