"""compact refuses a key whose changes contradict each other, unless the reason is known (S4-09).

A contradiction is worth stopping for, because it reveals that a transaction between two others is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lakehouse import CLUSTER_ID, Lakehouse, Source, rows_of
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.mariadb import MariaDb, execute
from support.workload import Workload, integer, text

from binlake.common.redaction import redact_key
from binlake.config import Replication
from binlake.errors import SchemaError
from binlake.spark_jobs.commands.table import set_aside
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.failures import translate
from binlake.spark_jobs.stages import compact

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]


class Gap:
    """One window with INSERT, DELETE, INSERT of one row; the DELETE is `at`. Without it the INSERTs contradict each
    other.
    """

    def __init__(self, spark: SparkSession, root: Path, server: MariaDb) -> None:
        execute(server, "DROP DATABASE IF EXISTS tidb_binlog")
        address = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
        self.target, self._spark, self._root = {"db-type": "mariadb", **address}, spark, root
        w = Workload()
        w.create_database("shop")
        w.create_table("shop", "item", [integer("id"), text("name")], ["id"])
        w.begin().insert("shop", "item", id=7, name="old").commit()
        self.at = w.begin().delete("shop", "item", id="7", name="old").commit()
        w.begin().insert("shop", "item", id=7, name="new").commit()
        self._hi, self._source = w.clock(), Source.of_workload(w)

    def lose(self) -> None:
        """Pretend that the DELETE never landed."""
        self._source.binlogs = [b for b in self._source.binlogs if b.commit_ts != self.at]

    def compacted(self, target: dict[str, Any] | None = None, **config: Any) -> list[dict[str, Any]]:
        """The rows of `change`."""
        lakehouse = Lakehouse(
            self._spark, self._root, self._source, {**config, "target": {**self.target, **(target or {})}}
        )
        context: StageContext = lakehouse.context()
        compact.run(context, lakehouse.land(0, self._hi))
        return rows_of(context.paths.locate_table("change"))


@pytest.fixture
def gap(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> Gap:
    return Gap(spark, tmp_path, mariadb)


def test_missing_transaction_is_detected(gap: Gap) -> None:
    gap.lose()
    with pytest.raises((SchemaError, PySparkException)) as caught:
        gap.compacted()
    ours = translate(caught.value)
    assert isinstance(ours, SchemaError)
    mark = redact_key('["7"]')
    assert f"contradict each other [table=shop.item key={mark} " in str(ours)
    assert "target.impossible-changes = last" in ours.hint


def test_operator_can_accept_the_last_change(gap: Gap) -> None:
    gap.lose()
    [change] = gap.compacted({"impossible-changes": "last"})
    assert dict(change["after"])["name"] == "new"


def test_contradictions_of_a_table_aside_stop_no_window(gap: Gap) -> None:  # U-16
    gap.lose()
    target = Replication.model_validate(
        {"name": "demo", "lake": {"path": "x"}, "target": gap.target}
    ).require_sql_target()
    set_aside(target, CLUSTER_ID, "demo", [("shop", "ITEM")], "two rows of one key", 0)
    [change] = gap.compacted()
    assert dict(change["after"])["name"] == "new"


def test_changes_left_out_by_a_filter_are_no_contradiction(gap: Gap) -> None:
    rule = {"schema-pattern": "shop", "table-pattern": "item", "events": ["delete"], "action": "Ignore"}
    [change] = gap.compacted(filters=[rule])
    assert dict(change["after"])["name"] == "new"


def test_transaction_skipped_by_commit_ts_is_no_contradiction(gap: Gap) -> None:  # U-12
    [change] = gap.compacted(filter={"ignore-txn-commit-ts": [str(gap.at)]})
    assert dict(change["after"])["name"] == "new"
