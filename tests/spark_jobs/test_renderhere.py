"""A small window's net changes: the driver finds the sizes, digests and statements that Spark's workers find."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from binlake.lake.paths import LakePaths
from binlake.lake.tables import CHANGE, SPARK_TABLES
from spark_jobs import render, renderhere
from spark_jobs.lake import ensure_tables, overwrite, read

pytestmark = pytest.mark.spark

COUNTED = (*render.PLACE, "bucket", "rows", "bytes", "fold0", "fold1", "fold2")


def changes(count: int) -> pa.Table:
    """Net changes of three tables, one of them keyless, with NULL values and missing images."""
    draw = random.Random(11)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        table = draw.choice(["a", "b", "ü"])
        op = draw.choice(["delete", "insert"] if table == "b" else ["delete", "replace"])
        image = [("id", str(number)), ("text", draw.choice([None, "", "ä😀", "x" * draw.randrange(90)]))]
        image = draw.sample(image, 2)
        rows.append(
            {"window": "1-9", "segment": draw.randrange(2), "db": "d", "table": table, "key": f'["{number}"]',
             "identity": "row" if table == "b" else "primary", "op": op,
             "before": image if op == "delete" else draw.choice([None, image]),
             "after": None if op == "delete" else image,
             "copies": draw.randrange(1, 4) if table == "b" else 1, "first_commit_ts": 2,
             "last_commit_ts": 470583292723200001 + number, "mutations": draw.randrange(1, 9)}
        )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema([(f.name, f.type) for f in CHANGE.arrow_schema()]))


def test_sizes_and_digests_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:  # R-18 R-62
    assert CHANGE in SPARK_TABLES
    paths = LakePaths(str(tmp_path))
    ensure_tables(paths)
    overwrite(spark.createDataFrame(changes(400)), paths, CHANGE, "window = '1-9'", {})
    names = CHANGE.column_names()
    by_spark = render.sizes(render.placed(read(spark, paths, CHANGE).where(F.col("window") == "1-9")), names)
    here = renderhere.sizes(renderhere.placed(paths, "1-9"), names)
    assert [tuple(int(r[c]) if c.startswith("fold") else r[c] for c in COUNTED) for r in by_spark] == [
        tuple(row[name] for name in COUNTED) for row in here
    ]
    assert len(here) > 100
