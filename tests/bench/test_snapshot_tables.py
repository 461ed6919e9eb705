"""`make bench-snapshot`: one missing or changed row fails it, and the floor writes the rows that the source has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from snapshot_tables import DB, SHAPES, Tables, read_statements
from support.examples import spread

from deploy.local.mariadb import MariaDb

pytestmark = pytest.mark.long


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[MariaDb, MariaDb]]:
    with MariaDb(tmp_path / "source") as source, MariaDb(tmp_path / "target") as target:
        yield source, target


def execute(server: MariaDb, statement: str | bytes) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.parametrize("shape", spread(list(SHAPES), least=1))
def test_the_floor_writes_each_row_and_a_fault_is_found(
    pair: tuple[MariaDb, MariaDb], tmp_path: Path, shape: str
) -> None:
    (source, target), tables = pair, Tables(shape, 2_503, 2)
    tables.create(source)
    tables.fill(source)
    tables.create(target)
    assert [line.split(":")[0] for line in tables.find_differences(source, target)] == ["t0", "t1"]
    tables.write_statements(source, tmp_path / "statements")
    with (tmp_path / "statements").open("rb") as file:
        for statement in read_statements(file):
            execute(target, statement)
    assert tables.find_differences(source, target) == []
    last = tables.columns[-1].name
    execute(target, f"UPDATE {DB}.t1 SET {last} = IF({last} IS NULL, 1, NULL) WHERE id = 1200")
    assert tables.find_differences(source, target) == ["t1: 1252 rows instead of 1252, or other values"]
    execute(target, f"DELETE FROM {DB}.t0 WHERE id = 7")
    assert len(tables.find_differences(source, target)) == 2
