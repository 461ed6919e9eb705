"""Upstream's daily tests on row changes (tidb-binlog 7.2, cases 10, 18, 19, 22, 23)."""

from __future__ import annotations

import random

import pytest
from daily import Daily

from binlake.rows.schema import Action

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


def test_case_10_unique_key_holding_nulls(daily: Daily) -> None:
    daily.create("t", "a INT, b INT, c INT, UNIQUE KEY u (a, b)")
    txn = daily.begin().insert("t", a=1, b=None, c=1).insert("t", a=1, b=None, c=1).insert("t", a=1, b=2, c=3)
    txn.commit()
    daily.check()
    daily.begin().update("t", {"a": "1", "b": None, "c": "1"}, c=7).commit()
    daily.check()
    assert daily.target_rows("t") == [("1", "2", "3"), ("1", None, "1"), ("1", None, "7")]


@pytest.mark.parametrize("seed", [1, 2])
def test_case_18_random_rows_with_a_pk_and_a_unique_key(daily: Daily, seed: int) -> None:
    rng = random.Random(seed)
    daily.create("t", "pk INT PRIMARY KEY, uk INT UNIQUE, v INT")
    for n in range(400):
        present = {row["pk"]: row for row in daily.rows("t")}
        taken = {row["uk"] for row in present.values()}
        pk, uk = str(rng.randrange(20)), str(rng.randrange(20))
        txn, old = daily.begin(), present.get(pk)
        if old is None and uk not in taken:
            txn.insert("t", pk=pk, uk=uk, v=n)
        elif old is not None and rng.random() < 0.3:
            txn.delete("t", **old)
        elif old is not None and uk not in taken:
            moved = str(rng.randrange(20))
            txn.update("t", old, uk=uk, v=n, **({} if moved in present else {"pk": moved}))
        if txn.changes:
            txn.commit()
        if n % 100 == 99:
            daily.check()
    assert daily.replay.applied.rows > 20


def test_case_19_swap_of_unique_values(daily: Daily) -> None:
    daily.create("t", "id INT PRIMARY KEY, a INT UNIQUE")
    daily.begin().insert("t", id=1, a=1).insert("t", id=2, a=2).commit()
    daily.check()
    txn = daily.begin().update("t", {"id": "1", "a": "1"}, a=-1).update("t", {"id": "2", "a": "2"}, a=1)
    txn.update("t", {"id": "1", "a": "-1"}, a=2).commit()
    daily.check()
    assert daily.target_rows("t") == [("1", "2"), ("2", "1")]


TABLES = {
    "ptest": "a INT PRIMARY KEY, b DOUBLE NOT NULL DEFAULT 2, c VARCHAR(10) NOT NULL, d TIME UNIQUE",
    "itest": "a INT, b DOUBLE NOT NULL DEFAULT 2, c VARCHAR(10) NOT NULL, d TIME UNIQUE, PRIMARY KEY (a, b)",
    "ntest": "a INT, b DOUBLE NOT NULL DEFAULT 2, c VARCHAR(10) NOT NULL, d TIME UNIQUE",
}


@pytest.mark.parametrize("seed", [1, 2])
def test_case_22_random_workload_with_a_column_dropped_and_added(daily: Daily, seed: int) -> None:
    rng = random.Random(seed)
    for name, columns in TABLES.items():
        daily.create(name, columns)
    for job in range(240):
        name = rng.choice(list(TABLES))
        if job == 120:
            for table in TABLES:
                daily.alter(table, "DROP COLUMN `c`", Action.DROP_COLUMN)
                daily.alter(table, "ADD COLUMN `c` VARCHAR(10) NOT NULL DEFAULT 'x'", Action.ADD_COLUMN)
        txn, rows = daily.begin(), daily.rows(name)
        if rows and rng.random() < 0.3:
            txn.delete(name, **rng.choice(rows))
        elif rows and rng.random() < 0.4:
            txn.update(name, rng.choice(rows), b=f"{rng.randrange(9)}.5", c=f"u{job}")
        else:
            clock = f"{job // 60:02}:{job % 60:02}:00"
            txn.insert(name, a=job, b="1.25", c=f"c{job}", d=None if rng.random() < 0.2 else clock)
        txn.commit()
        if job in (60, 180, 239):
            daily.check()


def test_case_23_truncate_then_drop(daily: Daily) -> None:
    for name, columns in TABLES.items():
        daily.create(name, columns)
        daily.begin().insert(name, a=1, b="1.5", c="x", d=None).commit()
    for name in TABLES:
        daily.truncate(name)
    daily.check()
    for name in TABLES:
        daily.begin().insert(name, a=2, b="1.5", c="x", d=None).commit()
        daily.drop(name)
    daily.check()
    assert daily.tables == {}
