"""The digest of rows that Python computes is the one that Spark computes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from binlake.lake import sparkhash
from spark_jobs.lake import folds

pytestmark = pytest.mark.spark


def test_python_and_spark_fold_the_same_rows_to_the_same_values(spark: SparkSession) -> None:
    draw = random.Random(7)
    sizes = [0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 200, 5000]
    rows = pa.table(
        {
            "big": pa.array([draw.randrange(-(1 << 63), 1 << 63) for _ in sizes[1:]] + [None], pa.int64()),
            "small": pa.array([0, -1, None, (1 << 31) - 1, -(1 << 31), *range(9)], pa.int32()),
            "text": pa.array([None, *("ü😀a\x00"[: n % 4] * n for n in sizes[1:])], pa.string()),
            "bytes": pa.array([draw.randbytes(n) for n in sizes], pa.binary()),
        }
    )
    frame = spark.createDataFrame(rows)
    count, added, mixed = frame.agg(*folds(frame, rows.column_names)).collect()[0]
    assert (count, int(added), mixed) == sparkhash.folds(rows, rows.column_names)
    none = frame.where("big IS NULL AND small = 77")
    assert tuple(none.agg(*folds(none, rows.column_names)).collect()[0]) == sparkhash.folds(
        rows.slice(0, 0), rows.column_names
    )
