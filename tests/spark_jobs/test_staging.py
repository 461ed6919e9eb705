"""land combines overlapping pulls, in the driver's memory and in Spark's files, with the same results."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from binlake.errors import ConflictingBinlogs
from binlake.rows.schema import WindowDdl
from binlake.wire import build
from spark_jobs.job.context import Bounds
from spark_jobs.land.pulled import NOTHING, InMemory, Pulled, PumpPart
from spark_jobs.land.pump_source import ARROW_SCHEMA
from spark_jobs.land.stage import _refuse_conflicts
from spark_jobs.land.staging import Staged
from spark_jobs.tables.landed import measure_landed

pytestmark = pytest.mark.spark

PLACES: dict[str, Callable[[SparkSession, pa.Table], Pulled]] = {
    "in the driver": lambda _, rows: Pulled(InMemory(rows)),
    "by Spark": lambda spark, rows: Pulled(Staged(spark.createDataFrame(rows).repartition(3))),
}


def pulled_rows(*rows: tuple[str, str, int, int, str, int]) -> pa.Table:
    """(pump, kind, commit_ts, chunk, content, schema version) each."""
    return pa.Table.from_pylist(
        [
            {"pump": pump, "kind": kind, "commit_ts": ts, "start_ts": ts - 1, "chunk": chunk, "content": content,
             "schema_version": version if kind == "dml" else 0, "job_id": version if kind == "ddl" else 0,
             "schema_state": 6 if kind == "ddl" else 0, "query": "create table t (a int)" if kind == "ddl" else None,
             "payload": f"{pump}{chunk}".encode()}
            for pump, kind, ts, chunk, content, version in rows
        ],
        schema=ARROW_SCHEMA,
    )  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_equal_transactions_of_two_pumps_are_one_and_different_content_is_refused(
    spark: SparkSession, place: str
) -> None:
    # U-22
    # S0-17, DESIGN 3.4: equal commit_ts with equal content is one transaction; rows outside the window are ignored
    pulled = PLACES[place](
        spark,
        pulled_rows(
            ("b", "dml", 10, 0, "x", 3), ("a", "dml", 10, 0, "x", 3), ("a", "dml", 10, 1, "x", 3),
            ("b", "dml", 10, 1, "x", 3), ("b", "dml", 11, 0, "y", 4), ("a", "dml", 5, 0, "early", 2),
            ("b", "dml", 5, 0, "other", 2), ("a", "proof", 20, 0, "", 0), ("a", "dml", 30, 0, "late", 9),
        ),
    )  # fmt: skip
    bounds = Bounds(5, 20)
    found = pulled.select_transactions(bounds)
    assert measure_landed(found) == measure_landed(pulled.select_transactions(Bounds(5, 11)))
    assert measure_landed(found).rows == 3
    found = found if isinstance(found, DataFrame) else spark.createDataFrame(found)
    found = found.orderBy("commit_ts", "chunk").collect()
    assert [(row["commit_ts"], row["chunk"], row["pump"]) for row in found] == [
        (10, 0, "a"),
        (10, 1, "a"),
        (11, 0, "b"),
    ]
    assert str(found[0]["commit_date"]) == "1970-01-01"
    assert pulled.read_proofs() == {"a": 20, "b": 0}
    _refuse_conflicts(pulled, bounds)
    with pytest.raises(ConflictingBinlogs, match="commit_ts=5"):
        _refuse_conflicts(pulled, Bounds(4, 20))


@pytest.mark.parametrize("place", PLACES)
def test_content_of_two_pumps_is_compared_except_for_the_prewrite_key(spark: SparkSession, place: str) -> None:
    # S0-17: the payloads themselves are compared, damaged ones byte for byte.
    def rows(second: bytes) -> pa.Table:
        found = pulled_rows(("a", "dml", 10, 0, "", 3), ("b", "dml", 10, 0, "", 3), ("a", "dml", 12, 0, "", 3))
        found = found.set_column(9, "content", pa.nulls(3, pa.string()))
        return found.set_column(10, "payload", pa.array([one, second, b"\xff"], pa.binary()))

    def binlog(key: bytes, value: bytes) -> bytes:
        return (
            build.build_commit(build.build_prewrite(9, key, b""), 10).SerializeToString()
            + b"\x2a"
            + bytes([len(value)])
            + value
        )

    one = binlog(b"k1", b"\x08\x03")
    assert PLACES[place](spark, rows(binlog(b"k2", b"\x08\x03"))).find_conflict(Bounds(5, 20)) is None
    assert PLACES[place](spark, rows(binlog(b"k1", b"\x08\x04"))).find_conflict(Bounds(5, 20)) == 10
    assert PLACES[place](spark, rows(one[:-1])).find_conflict(Bounds(5, 20)) == 10


@pytest.mark.parametrize("place", PLACES)
def test_each_pump_is_counted_within_the_window_and_each_ddl_reported_once(
    spark: SparkSession, place: str
) -> None:
    pulled = PLACES[place](
        spark,
        pulled_rows(
            ("a", "dml", 6, 0, "x", 7), ("a", "dml", 6, 1, "x", 7), ("a", "ddl", 8, 0, "d", 41),
            ("b", "ddl", 8, 0, "d", 41), ("a", "ddl", 9, 0, "e", 42), ("a", "dml", 12, 0, "y", 8),
            ("a", "dml", 25, 0, "z", 9), ("a", "proof", 25, 0, "", 0), ("c", "proof", 21, 0, "", 0),
        ),
    )  # fmt: skip
    parts = pulled.survey(Bounds(5, 20))
    assert parts["a"] == PumpPart(proof=25, entities=4, ddls=2, schema_version=8)
    assert parts.get("b", NOTHING).proof == 0
    assert parts["c"] == PumpPart(21, 0, 0, 0)
    text = "create table t (a int)"
    assert pulled.read_ddls(Bounds(5, 20)) == [WindowDdl(8, 7, 41, 6, text), WindowDdl(9, 8, 42, 6, text)]
    assert pulled.read_ddls(Bounds(8, 20)) == [WindowDdl(9, 8, 42, 6, text)]
    assert pulled.find_first_row(6, 8) == 12
    assert pulled.find_first_row(13, 8) == 25
    assert pulled.find_first_row(6, 10) is None
    assert (pulled.find_first_row(6), pulled.find_first_row(7)) == (6, 12)
