"""Each statement of a batch is executed and checked once, and an error names the row or the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import pytest
from support.cutting import CuttingProxy
from support.mariadb import MariaDb, rows
from support.windows import Window, apply

from binlake.config.model import Target
from binlake.errors import TargetRefused
from binlake.target import Session
from binlake.target.apply.batches import run_batch


class Touching:
    """A session whose statements report the given numbers of affected rows."""

    def __init__(self, touched: int) -> None:
        self._touched = touched
        self.executed: list[str] = []

    def execute(self, sql: str) -> int:
        self.executed.append(sql)
        return self._touched


def test_error_names_the_row_of_a_statement_in_commit_order() -> None:
    # a batch of mode ordered holds rows of several tables
    (batch,) = Window(0, 100).log("x").written
    sql = f"DELETE FROM `d`.`t` WHERE `id` = 7 AND `v` = '{'x' * 400}' LIMIT 1 /* commit_ts 41 */"
    refused = replace(batch, table="", sql=(sql,), expect=(1,))
    with pytest.raises(TargetRefused, match="touched 0 rows instead of 1") as stopped:
        run_batch(cast(Session, Touching(0)), refused)
    where = stopped.value.where
    assert (where["table"], where["commit_ts"]) == ("d.t", "41")
    assert where["row"] == "`id` = ? AND `v` = ?"
    assert stopped.value.tables == (("d", "t"),)


def test_error_of_a_one_table_batch_names_the_batch() -> None:
    (batch,) = Window(0, 100).unlog("x").written
    with pytest.raises(TargetRefused, match="touched 2 rows instead of 1") as stopped:
        run_batch(cast(Session, Touching(2)), batch)
    assert "row" not in stopped.value.where
    assert stopped.value.tables == (("app", "log"),)


def test_batch_without_an_expected_count_per_statement_fails() -> None:
    (batch,) = Window(0, 100).log("x").written
    session = Touching(1)
    with pytest.raises(ValueError, match="shorter"):
        run_batch(cast(Session, session), replace(batch, sql=(*batch.sql, "DELETE FROM app.log")))
    assert session.executed == list(batch.sql)


@pytest.mark.mariadb
@pytest.mark.parametrize("lose", ["request", "answer"])
def test_batch_with_a_lost_commit_is_applied_once(
    server: MariaDb, target: Target, lose: Literal["request", "answer"]
) -> None:
    # R-61, invariant 9: the COMMITs before it belong to the fence, the opening and the first batch
    steps: list[str] = []
    with CuttingProxy(target.host, target.port, at=4, lose=lose) as proxy:
        through = target.model_copy(update={"port": proxy.port, "mode": "parallel", "worker_count": 1})
        assert apply(through, Window(0, 100).log("one").log("two").log("three"), steps.append).batches == 3
        assert proxy.cuts == 1
    assert steps.count("batch") == (4 if lose == "request" else 3)
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("one",), ("three",), ("two",)]
