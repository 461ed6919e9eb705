"""Rows that Spark writes, behind decoding: the columns that their target has besides, and the count of losses."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from binlake.window.extras import Extra
from spark_jobs.decode import TALLIES
from spark_jobs.lake import local_frame

_EXTRAS = "x_db STRING, x_table STRING, x_since BIGINT, x_until BIGINT, x_names ARRAY<STRING>, x_values ARRAY<STRING>"
_IMAGES = ("before", "after")


def completed(spark: SparkSession, rows: DataFrame, added: list[Extra]) -> tuple[DataFrame, Observation]:
    """(rows of `mutation` with the columns `added`, what was left out once they are written)."""
    counted = Observation("filtered")
    sums = [F.sum(F.when(F.col("op") == op, F.col("commit_ts"))).alias(op) for op in TALLIES]
    kept = rows.observe(counted, *sums).where(~F.col("op").isin(*TALLIES))
    return _with_added(spark, kept, added), counted


def losses(counted: Observation) -> dict[str, int]:
    """By reason, what was left out: rows, and whole transactions for `loopback`. After the rows are written."""
    return {reason: int(number) for reason, number in sorted(counted.get.items()) if number}


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
