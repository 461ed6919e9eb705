"""Through the stages: a missing table is set aside while others continue, and returns; DDL are verified afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.mariadb import MariaDb, execute, rows
from test_sql_sink import Sink

from binlake.repair.tableback import bring_table_back
from binlake.spark_jobs.stages import mirror
from binlake.window.events import ASIDE

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]


def is_consistent(server: MariaDb) -> bool:
    return bool(json.loads(rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])["consistent"])


def without_log(found: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    return {name: data for name, data in found.items() if name != ("shop", "log")}


def test_missing_table_stops_no_other_table_and_can_be_brought_back(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path
) -> None:
    # U-16: its rows and a DDL (DROP COLUMN) are skipped; ADD COLUMN and TRUNCATE of other tables are verified
    sink = Sink(spark, tmp_path, mariadb, **{"on-table-error": "set-aside"})
    verified = []
    for number, bounds in enumerate(sink.windows):
        if number == 1:
            execute(mariadb, "DROP TABLE shop.log")
        sink.lakehouse.land(bounds.lo, bounds.hi)
        done = sink.apply(bounds)[-1]
        verified += done.detail.get("verified_after_ddl", [])
        mirror.run(sink.ctx, bounds)
        assert [one["table"] for one in done.detail.get("set_aside", [])] == (["shop.log"] if number else [])
        assert without_log(sink.target()) == without_log(sink.model(bounds.hi))
        assert is_consistent(mariadb) is (number == 0)
    assert {one["table"]: one["state"] for one in verified} == {"shop.item": "equal", "shop.temp": "equal"}

    execute(
        mariadb,
        "CREATE TABLE shop.log (what VARCHAR(64)) CHARSET = utf8mb4 COLLATE = utf8mb4_bin",
    )
    bring_table_back(sink.ctx.replication, ("shop", "log"))
    assert sink.target() == sink.model(sink.windows[-1].hi)
    assert is_consistent(mariadb)
    assert [event["state"] for event in sink.ctx.windows.read_events(stage=ASIDE)] == ["set-aside"]
