"""Spark's workers compute the same from random rows as the driver, and their errors arrive as Binlake errors."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.changerows import Drawn, comparable_rows, mutation_rows

from binlake.changes.net import RowEvent
from binlake.errors import SchemaError
from binlake.window.definitions import Cell
from spark_jobs.job.failures import translate_errors
from spark_jobs.tables import netchange

pytestmark = pytest.mark.spark

ALONE = [Cell("d", "t", 0, 1, 10, "primary", ("a",), (None,))]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Rows in many shares, and several batches per task."""
    monkeypatch.setattr(netchange, "SHARE_ROWS", 100)
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    return Drawn(Random(seed), tables=12, events=1500)


def _net(rows: DataFrame, cells: Sequence[Cell], **how: Any) -> pa.Table:
    count = rows.count()
    with translate_errors():
        return netchange.compute_net_changes(rows, cells, count, **how).toArrow()  # type: ignore[union-attr]


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows).repartition(3)


@pytest.mark.soak
@pytest.mark.parametrize("routed", [False, True])
def test_net_changes_of_workers_equal_the_reference_on_random_rows(
    spark: SparkSession, drawn: Drawn, routed: bool
) -> None:
    # R-17 (copies), R-18 (identity of the segment), invariant 6
    found = _net(_frame(spark, drawn.rows()), drawn.cells(), routed=routed)
    assert comparable_rows(found) == drawn.expected()


def test_origins_of_workers_equal_those_of_the_driver(spark: SparkSession, drawn: Drawn) -> None:
    cells = [cell for cell in drawn.cells() if cell.identity != "row"]
    rows = drawn.rows()
    here = netchange.find_row_origins(rows, cells)
    found = netchange.find_row_origins(_frame(spark, rows), cells).toArrow()  # type: ignore[union-attr]
    assert here.num_rows > 20
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, here.to_pylist()))


def test_arrivals_of_workers_equal_those_of_the_driver(spark: SparkSession, drawn: Drawn) -> None:  # S4-03
    rows = drawn.rows()
    sources = pa.array([drawn.random.choice(("s1", "s2")) for _ in range(rows.num_rows)])
    ids = pa.array([drawn.random.randrange(2) for _ in range(rows.num_rows)], pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("source_table"), "source_table", sources)
    rows = rows.set_column(rows.schema.get_field_index("table_id"), "table_id", ids)
    histories, here = netchange.find_key_arrivals(rows, drawn.cells(), rows.num_rows)
    others, found = netchange.find_key_arrivals(_frame(spark, rows), drawn.cells(), rows.num_rows)
    assert histories == others
    wanted = [row for batch in here for row in batch.to_pylist()]
    assert {row["other_source"] is None for row in wanted} == {True, False}
    assert sorted(str(row) for batch in found for row in batch.to_pylist()) == sorted(map(str, wanted))


@pytest.mark.parametrize("times", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_one_key_changed_many_times_is_one_change(spark: SparkSession, times: int) -> None:  # U-22
    many = spark.range(times).select(
        F.lit(5).cast("bigint").alias("commit_ts"), F.lit(4).cast("bigint").alias("start_ts"),
        F.col("id").cast("int").alias("seq"), F.lit("d").alias("db"), F.lit("t").alias("table"),
        F.expr("map('a', '1', 'n', cast(id - 1 as string))").alias("before"),
        F.expr("map('a', '1', 'n', cast(id as string))").alias("after"),
    )  # fmt: skip
    [row] = _net(many, ALONE).to_pylist()
    assert (row["op"], dict(row["after"])["n"], row["mutations"]) == ("replace", str(times - 1), times)


def test_worker_sends_one_run_per_key_instead_of_all_changes() -> None:
    changes = [("t", RowEvent(5, 4, seq, "update", {"a": "1"}, {"a": "1"})) for seq in range(1000)]
    task = netchange.NetTask(tuple(ALONE), routed=False, strict=frozenset(), shares=1)
    [sent] = task.runs(iter(mutation_rows(changes).to_batches()))
    assert [row["mutations"] for row in sent.to_pylist()] == [1000]


def test_errors_of_workers_become_binlake_errors_with_their_context(spark: SparkSession) -> None:  # S4-09
    null = mutation_rows([("t", RowEvent(5, 4, 0, "insert", None, {"a": None}))])
    with pytest.raises(SchemaError, match=r"a key column is NULL or absent \[table=d.t commit_ts=5\]"):
        _net(_frame(spark, null), ALONE)
    twice = [("t", RowEvent(ts, 3, 0, "insert", None, {"a": "1"})) for ts in (6, 5)]
    with pytest.raises(SchemaError, match="key=#43de3a417d75 first_commit_ts=5 last_commit_ts=6") as caught:
        _net(_frame(spark, mutation_rows(twice)), ALONE, strict=ALONE)
    assert caught.value.hint.startswith("the source logged")
    assert _net(_frame(spark, mutation_rows(twice)), ALONE).num_rows == 1
