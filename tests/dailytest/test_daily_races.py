"""Upstream's multi-source DDL races (tidb-binlog 7.2, cases 1 to 4, 6, 13): hand-made, seeded interleavings.

A writer sees one of two consecutive definitions, before or after the DDL's commit: what it commits was built with the
older definition, or already with the newer one.
"""

from __future__ import annotations

import random

import pytest
from daily import Daily

from binlake.rows.schema import Action, TableDef

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

SEEDS = [1, 2, 3]


def change_rows(source: Daily, rng: random.Random, seen: TableDef | None = None, count: int = 6) -> None:
    """Inserts, updates and deletes on `test1` by a writer that sees the definition `seen`."""
    for _ in range(count):
        definition = seen or source.table("test1")
        rows = source.rows("test1")
        txn = source.begin()
        if not rows or rng.random() < 0.5:
            free = max((int(row["id"] or 0) for row in rows), default=0) + 1
            txn.insert("test1", definition, id=free)
        elif rng.random() < 0.5:
            txn.update("test1", read_as(definition, source, rng.choice(rows)), definition, v=str(rng.randrange(99)))
        else:
            txn.delete("test1", definition, **read_as(definition, source, rng.choice(rows)))
        txn.commit()


def read_as(definition: TableDef, source: Daily, row: dict[str, str | None]) -> dict[str, object]:
    """A row as a writer with `definition` reads it: its columns with the values of the same column ids."""
    own = {c.id: row[c.name] for c in source.table("test1").columns}
    return {c.name: own.get(c.id, c.origin_default) for c in definition.columns}


@pytest.mark.parametrize("seed", SEEDS)
def test_race_1_create_and_drop_schema(daily: Daily, seed: int) -> None:  # S0-61, tidb-binlog 1.14 point 14
    rng = random.Random(seed)
    for turn in range(3):
        daily.create("test1", "id INT PRIMARY KEY, v INT DEFAULT 1")
        change_rows(daily, rng)
        old = daily.table("test1")
        daily.drop_database()
        if rng.random() < 0.7:
            daily.begin().insert("test1", old, id=999).commit()
        daily.create_database()
        daily.begin().insert("test1", old, id=998).commit()
        if turn != 1:  # dropped and created twice in one window
            daily.check()
    assert daily.replay.applied.ddls > 6


@pytest.mark.parametrize("seed", SEEDS)
def test_race_2_truncate_table(daily: Daily, seed: int) -> None:  # tidb-binlog 1.14 point 14
    rng = random.Random(seed)
    daily.create("test1", "id INT PRIMARY KEY, v INT DEFAULT 1")
    for turn in range(4):
        change_rows(daily, rng)
        old = daily.table("test1")
        late = daily.begin().insert("test1", id=999)
        daily.truncate("test1")
        change_rows(daily, rng, count=2)
        late.commit()
        daily.begin().insert("test1", old, id=998).commit()
        if turn % 2:
            daily.check()
            assert "999" not in {row["id"] for row in daily.rows("test1")}


@pytest.mark.parametrize("default", ["DEFAULT NULL", "DEFAULT 7", "NOT NULL DEFAULT 7"])
@pytest.mark.parametrize("seed", SEEDS)
def test_race_3_drop_and_add_column(daily: Daily, default: str, seed: int) -> None:  # R-19, S0-64
    rng = random.Random(seed)
    daily.create("test1", f"id INT PRIMARY KEY, v INT DEFAULT 1, c INT {default}")
    for turn in range(2):
        change_rows(daily, rng)
        with_c = daily.table("test1")
        dropping = daily.altering("test1", "DROP COLUMN `c`", Action.DROP_COLUMN)
        if rng.random() < 0.5:
            daily.half_step(dropping)
        for definition in rng.sample([dropping.definition, with_c], 2):
            change_rows(daily, rng, definition, 3)  # write-only and delete-only states: the row has the column, or not
        dropping.commit()
        change_rows(daily, rng, with_c, 2)  # built before the drop, committed after it
        change_rows(daily, rng, count=2)
        without = daily.table("test1")
        adding = daily.altering("test1", f"ADD COLUMN `c` INT {default}", Action.ADD_COLUMN)
        for definition in rng.sample([without, adding.definition], 2):
            change_rows(daily, rng, definition, 3)  # delete-only and write-only states of the new column
        adding.commit()
        change_rows(daily, rng, without, 2)
        change_rows(daily, rng, count=3)
        if turn:
            daily.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_race_4_modify_column_default(daily: Daily, seed: int) -> None:
    rng = random.Random(seed)
    daily.create("test1", "id INT PRIMARY KEY, v INT DEFAULT 1, c INT DEFAULT NULL")
    for turn in range(4):
        change_rows(daily, rng)
        old = daily.table("test1")
        new = rng.choice(["NULL", str(rng.randrange(9))])
        modifying = daily.altering("test1", f"MODIFY COLUMN `c` INT DEFAULT {new}", Action.MODIFY_COLUMN)
        change_rows(daily, rng, modifying.definition, 2)
        modifying.commit()
        change_rows(daily, rng, old, 2)
        if turn % 2:
            daily.check()


def test_case_06_many_add_columns_while_rows_are_updated(daily: Daily) -> None:
    daily.create("test1", "id INT PRIMARY KEY, v INT")
    daily.begin().insert("test1", id=1, v=0).commit()
    for n in range(24):
        old = daily.table("test1")
        adding = daily.altering("test1", f"ADD COLUMN `c{n}` INT NOT NULL DEFAULT {n}", Action.ADD_COLUMN)
        for definition in (old, adding.definition):
            before = read_as(definition or old, daily, daily.rows("test1")[0])
            daily.begin().update("test1", before, definition, v=n).commit()
        adding.commit()
        before = read_as(old, daily, daily.rows("test1")[0])
        daily.begin().update("test1", before, old, v=n + 1000).commit()
    daily.check()
    assert len(daily.target_rows("test1")[0]) == 26


def test_case_13_many_drop_columns_while_rows_are_updated(daily: Daily) -> None:  # R-19, tidb-binlog 1.11
    columns = ", ".join(f"c{n} INT NOT NULL" for n in range(16))
    daily.create("test1", f"id INT PRIMARY KEY, v INT, {columns}")
    daily.begin().insert("test1", id=1, v=0, **{f"c{n}": n for n in range(16)}).commit()
    for n in range(16):
        old = daily.table("test1")
        dropping = daily.altering("test1", f"DROP COLUMN `c{n}`", Action.DROP_COLUMN)
        assert dropping.definition is not None
        daily.half_step(dropping)
        # Upstream the column is delete-only: rows come without it, although it is NOT NULL and has no default.
        daily.begin().insert("test1", dropping.definition, id=100 + n, v=n,
                             **{f"c{m}": 5 for m in range(n + 1, 16)}).commit()  # fmt: skip
        dropping.commit()
        before = read_as(old, daily, daily.rows("test1")[0])
        daily.begin().update("test1", before, old, v=n + 1000).commit()
        if n % 8 == 7:
            daily.check()
    assert len(daily.target_rows("test1")) == 17
