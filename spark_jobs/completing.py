"""Rows that Spark writes, behind decoding: the columns that their target has besides, and the count of losses."""

from __future__ import annotations

from collections import Counter
from functools import reduce

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from binlake.window.extras import Extra
from spark_jobs.decode import BY_TABLE, TALLIES
from spark_jobs.lake import local_frame

_EXTRAS = "x_db STRING, x_table STRING, x_since BIGINT, x_until BIGINT, x_names ARRAY<STRING>, x_values ARRAY<STRING>"
_IMAGES = ("before", "after")
_TABLES = "of tables"


def completed(spark: SparkSession, rows: DataFrame, added: list[Extra]) -> tuple[DataFrame, Observation]:
    """(rows of `mutation` with the columns `added`, what was left out once they are written)."""
    counted = Observation("filtered")
    sums = [F.sum(F.when(F.col("op") == op, F.col("commit_ts"))).alias(op) for op in TALLIES]
    of_table = reduce(lambda a, b: a | b, (F.col("op").startswith(prefix) for prefix in BY_TABLE))
    tables = F.collect_list(F.when(of_table, F.struct("op", "commit_ts"))).alias(_TABLES)
    kept = rows.observe(counted, *sums, tables).where(~F.col("op").isin(*TALLIES) & ~of_table)
    return _with_added(spark, kept, added), counted


def losses(counted: Observation) -> dict[str, int]:
    """By reason, what was left out: rows, and whole transactions for `loopback`; what BY_TABLE counts, by table. After
    the rows are written."""
    found = Counter({reason: int(number or 0) for reason, number in counted.get.items() if reason != _TABLES})
    for op, number in counted.get[_TABLES]:
        found[op] += number
    return {reason: number for reason, number in sorted(found.items()) if number}


def _with_added(spark: SparkSession, rows: DataFrame, added: list[Extra]) -> DataFrame:
    """Both images with the columns that their target has besides the source's."""
    if not added:
        return rows
    values = [(x.db, x.table, x.since, x.until, list(x.values), list(x.values.values())) for x in added]
    places = F.broadcast(local_frame(spark, values, _EXTRAS))
    here = [
        F.col("source_db") == F.col("x_db"),
        F.col("source_table") == F.col("x_table"),
        F.col("commit_ts") >= F.col("x_since"),
        F.col("commit_ts") < F.col("x_until"),
    ]
    joined = rows.join(places, reduce(lambda a, b: a & b, here), "left")
    more = F.map_from_arrays("x_names", "x_values")
    images = {
        name: F.when(F.col("x_names").isNull() | F.col(name).isNull(), F.col(name)).otherwise(F.map_concat(name, more))
        for name in _IMAGES
    }
    return joined.withColumns(images).select(*rows.columns)
