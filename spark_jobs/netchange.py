"""The net change of each key in each segment, by DataFrame operations alone (DESIGN 3.6; hazards R-17, R-18).

Keyed rows: the last change of a key wins; an update that moves a row ends its old key and writes its new one. Rows
without a key: copies of a full image after minus before. Nothing here gathers a key's history, so a key changed a
million times costs what a million rows cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION
from binlake.window.definitions import Cell
from spark_jobs.lake import read

CELLS = (
    "db STRING, table STRING, segment INT, since BIGINT, until BIGINT, identity STRING, "
    "columns ARRAY<STRING>, filled ARRAY<STRING>"
)
NET_COLUMNS = (
    "segment", "db", "table", "key", "identity", "op", "before", "after", "copies", "first_commit_ts",
    "last_commit_ts", "mutations",
)  # fmt: skip


def mutations(spark: SparkSession, paths: LakePaths, lo: int, hi: int) -> DataFrame:
    """The row changes with lo < commit_ts <= hi."""
    return read(spark, paths, MUTATION).where((F.col("commit_ts") > lo) & (F.col("commit_ts") <= hi))


def segment_of(starts: Sequence[int]) -> Column:
    """The segment of a row's commit_ts: how many of `starts` are at or below it."""
    if not starts:
        return F.lit(0)
    edges = F.array(*[F.lit(start) for start in starts])
    return F.size(F.filter(edges, lambda start: start <= F.col("commit_ts")))


def touched_cells(rows: DataFrame, starts: Sequence[int]) -> list[tuple[str, str, int]]:
    """(db, table, segment) of everything that `rows` change, sorted: names only, no rows."""
    found = rows.select("db", "table", segment_of(starts).alias("segment")).distinct().collect()
    return sorted((row["db"], row["table"], row["segment"]) for row in found)


def net_changes(spark: SparkSession, rows: DataFrame, cells: Sequence[Cell]) -> DataFrame:
    """NET_COLUMNS of `rows` (of `mutation`); every row must fall into one of `cells`.

    op: `delete` and `replace` for keyed rows, `delete` and `insert` of `copies` rows for the others. A key with a NULL
    fails the job as SchemaError.
    """
    places = F.broadcast(spark.createDataFrame([astuple(cell) for cell in cells], CELLS))
    here = (
        (F.col("m.db") == F.col("c.db"))
        & (F.col("m.table") == F.col("c.table"))
        & (F.col("m.commit_ts") >= F.col("c.since"))
        & (F.col("m.commit_ts") < F.col("c.until"))
    )
    placed = rows.alias("m").join(places.alias("c"), here)
    return _net(placed.select("c.segment", "c.db", "c.table", "c.identity", *_ORDER, F.explode(_events()).alias("e")))


_ORDER = ("commit_ts", "start_ts", "seq")


def _events() -> Column:
    before, after = _side("m.before"), _side("m.after")
    rowwise = F.col("c.identity") == "row"
    ends = F.col("m.before").isNotNull() & (rowwise | F.col("m.after").isNull() | (before["key"] != after["key"]))
    return F.filter(
        F.array(
            F.when(ends, _event("delete", -1, before, before["image"])),
            # A row that keeps its key brings its old image along: the first one seen is what a delete shows.
            F.when(F.col("m.after").isNotNull(), _event("replace", 1, after, F.when(~ends, before["image"]))),
        ),
        lambda event: event.isNotNull(),
    )


def _side(image: str) -> dict[str, Column]:
    values = F.transform(F.arrays_zip("c.columns", "c.filled"), lambda column: _value(image, column))
    broken = F.exists(values, lambda value: value.isNull()) & (F.col("c.identity") != "row")
    key = F.when(broken, F.raise_error(_null_key())).otherwise(F.to_json(values))
    # The image of a keyless row is its key: complete, so that equal rows are equal images.
    whole = F.when(F.col("c.identity") == "row", F.map_from_arrays("c.columns", values)).otherwise(F.col(image))
    return {"key": key, "image": whole}


def _value(image: str, column: Column) -> Column:
    name, filled = column["columns"], column["filled"]
    return F.when(F.map_contains_key(F.col(image), name), F.col(image)[name]).otherwise(filled)


def _null_key() -> Column:
    # The class name makes the driver raise it as ours (spark_jobs.failures).
    return F.concat(
        F.lit("binlake.errors.SchemaError: a key column is NULL or absent [table="),
        F.concat_ws(".", "c.db", "c.table"),
        F.lit(" commit_ts="),
        F.col("m.commit_ts").cast("string"),
        F.lit("]"),
    )


def _event(op: str, weight: int, side: dict[str, Column], old: Column) -> Column:
    return F.struct(
        F.lit(op).alias("op"),
        F.lit(weight).alias("weight"),
        side["key"].alias("key"),
        side["image"].alias("image"),
        old.alias("old"),
    )


def _net(events: DataFrame) -> DataFrame:
    grouped = events.groupBy("segment", "db", "table", "identity", F.col("e.key").alias("key")).agg(
        F.max_by(F.struct("e.op", "e.image"), F.struct(*_ORDER)).alias("last"),
        F.min_by("e.old", F.when(F.col("e.old").isNotNull(), F.struct(*_ORDER))).alias("old"),
        F.sum("e.weight").alias("net"),
        F.min("commit_ts").alias("first_commit_ts"),
        F.max("commit_ts").alias("last_commit_ts"),
        F.count("*").alias("mutations"),
    )
    rowwise = F.col("identity") == "row"
    op = F.when(~rowwise, F.col("last.op")).when(F.col("net") > 0, "insert").otherwise("delete")
    deleted = F.col("op") == "delete"
    return (
        grouped.where(~rowwise | (F.col("net") != 0))
        .withColumn("op", op)
        .withColumn("before", F.when(deleted, F.when(rowwise, F.col("last.image")).otherwise(F.col("old"))))
        .withColumn("after", F.when(~deleted, F.col("last.image")))
        .withColumn("copies", F.when(rowwise, F.abs("net")).otherwise(F.lit(1).cast("bigint")))
        .select(*NET_COLUMNS)
    )
