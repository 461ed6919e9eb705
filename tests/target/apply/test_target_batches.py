"""Each statement of a batch is executed and checked once, and an error names the row or the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import pytest
from support.cutting import CuttingProxy
from support.mariadb import MariaDb, rows
from support.tabledefs import col, primary, table
from support.windows import Window, apply

from binlake.config.servers import TargetSection
from binlake.errors import Drift, TargetRefused
from binlake.statements import UNCHECKED, TableStatements, build_images_from_rows
from binlake.target import TargetSession
from binlake.target.apply.batches import run_batch


class Touching:
    """A session whose statements report the given numbers of affected rows."""

    def __init__(self, touched: int, there: int = 0) -> None:
        self._touched, self._there = touched, there
        self.executed: list[str] = []

    def fetch_column(self, sql: str) -> list[int]:
        """The keys that are there."""
        self.executed.append(sql)
        return [1] * self._there

    def execute(self, sql: str) -> int:
        self.executed.append(sql)
        return self._touched


def test_error_names_the_row_of_a_statement_in_commit_order() -> None:
    # a batch of mode ordered holds rows of several tables
    (batch,) = Window(0, 100).log("x").written
    sql = f"DELETE FROM `d`.`t` WHERE `id` = 7 AND `v` = '{'x' * 400}' LIMIT 1 /* commit_ts 41 */"
    refused = replace(batch, table="", sql=(sql,), expect=(1,))
    with pytest.raises(TargetRefused, match="touched 0 rows instead of 1") as stopped:
        run_batch(cast(TargetSession, Touching(0)), refused)
    where = stopped.value.where
    assert (where["table"], where["commit_ts"]) == ("d.t", "41")
    assert where["row"] == "`id` = ? AND `v` = ?"
    assert stopped.value.tables == (("d", "t"),)


def test_error_of_a_one_table_batch_names_the_batch() -> None:
    (batch,) = Window(0, 100).unlog("x").written
    with pytest.raises(TargetRefused, match="touched 2 rows instead of 1") as stopped:
        run_batch(cast(TargetSession, Touching(2)), batch)
    assert "row" not in stopped.value.where
    assert stopped.value.tables == (("app", "log"),)


KEYED = table("t", col("a", not_null=True), col("b", not_null=True), keys=(primary("a", "b"),), db="app")


@pytest.mark.parametrize("alike", [True, False])
def test_delete_that_leaves_a_row_stops_and_an_absent_row_is_counted(*, alike: bool) -> None:
    # MariaDB found none of the rows of some deletes, and the window counted as applied
    keys = build_images_from_rows([{"a": "1", "b": "2"}, {"a": "3", "b": "4"}, {"a": "5", "b": "6"}], ["a", "b"])
    (batch,) = TableStatements(KEYED, 0, alike=alike).render_deletes(keys)
    alone = [f"SELECT 1 FROM `app`.`t` WHERE `a`={a} AND `b`={a + 1}" for a in (1, 3, 5)]

    all_found = Touching(3)
    assert run_batch(cast(TargetSession, all_found), batch) == 0
    assert all_found.executed == list(batch.sql)
    absent = Touching(1)
    assert run_batch(cast(TargetSession, absent), batch) == 2
    assert absent.executed[1:] == [" UNION ALL ".join(alone)]
    with pytest.raises(Drift, match="the target still has 2 rows that a DELETE by key had to remove") as stopped:
        run_batch(cast(TargetSession, Touching(1, there=2)), batch)
    assert stopped.value.tables == (("app", "t"),)
    assert "1" not in str(stopped.value.where["statement"])


def test_delete_in_commit_order_that_leaves_its_row_stops() -> None:
    (batch,) = Window(0, 100).log("x").written
    sql = "DELETE FROM `d`.`t` WHERE `id` = 7 LIMIT 1"
    safe = replace(batch, table="", kind="ordered", sql=(sql,), expect=(UNCHECKED,))
    assert run_batch(cast(TargetSession, Touching(0)), safe) == 1
    with pytest.raises(Drift, match="still has 1 rows") as stopped:
        run_batch(cast(TargetSession, Touching(0, there=1)), safe)
    assert stopped.value.tables == (("d", "t"),)


def test_batch_without_an_expected_count_per_statement_fails() -> None:
    (batch,) = Window(0, 100).log("x").written
    session = Touching(1)
    with pytest.raises(ValueError, match="shorter"):
        run_batch(cast(TargetSession, session), replace(batch, sql=(*batch.sql, "DELETE FROM app.log")))
    assert session.executed == list(batch.sql)


@pytest.mark.mariadb
@pytest.mark.parametrize("lose", ["request", "answer"])
def test_batch_with_a_lost_commit_is_applied_once(
    server: MariaDb, target: TargetSection, lose: Literal["request", "answer"]
) -> None:
    # R-61, invariant 9: the COMMITs before it belong to the fence, the opening and the first batch
    steps: list[str] = []
    with CuttingProxy(target.host, target.port, at=4, lose=lose) as proxy:
        through = target.model_copy(update={"port": proxy.port, "mode": "parallel", "worker_count": 1})
        assert apply(through, Window(0, 100).log("one").log("two").log("three"), steps.append).batches == 3
        assert proxy.cuts == 1
    assert steps.count("batch") == (4 if lose == "request" else 3)
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("one",), ("three",), ("two",)]
