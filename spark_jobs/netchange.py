"""The net change of each key in each segment, by DataFrame operations alone (DESIGN 3.6; hazards R-17, R-18).

Keyed rows: the last change of a key wins; an update that moves a row ends its old key and writes its new one. Rows
without a key: copies of a full image after minus before. Nothing here gathers a key's history, so a key changed a
million times costs what a million rows cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from binlake.lake.mutations import touched_cells
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION
from binlake.redaction import MARK_DIGITS, are_row_values_shown
from binlake.rowchange.lineage import origins
from binlake.rowchange.net import CONTRADICTION, CONTRADICTION_HINT
from binlake.window.definitions import Cell
from spark_jobs.lake import local_frame, read

CELLS = (
    "db STRING, table STRING, segment INT, since BIGINT, until BIGINT, identity STRING, "
    "columns ARRAY<STRING>, filled ARRAY<STRING>"
)
DRIVER_ROWS = 500_000
"""Row changes of which the driver itself reads three narrow columns, batch by batch (measured: 0.1 s)."""
COMPILED_SHAPES = 64
"""Distinct identities of a window whose keys get an expression of their own."""

# What JSON escapes.
_SPECIAL = r'["\\\x00-\x1f]'

ORIGIN_PLACE = ("segment", "db", "table")
ORIGINS = "segment INT, db STRING, table STRING, key STRING, origin STRING"

NET_COLUMNS = (
    "segment", "db", "table", "key", "identity", "op", "before", "after", "copies", "first_commit_ts",
    "last_commit_ts", "mutations",
)  # fmt: skip


def mutations(spark: SparkSession, paths: LakePaths, lo: int, hi: int) -> DataFrame:
    """The row changes with lo < commit_ts <= hi."""
    return read(spark, paths, MUTATION).where((F.col("commit_ts") > lo) & (F.col("commit_ts") <= hi))


def touched(
    spark: Callable[[], SparkSession], paths: LakePaths, lo: int, hi: int, starts: Sequence[int], rows: int
) -> list[tuple[str, str, int]]:
    """(db, table, segment) of the row changes in (lo, hi], sorted; `starts` open segments 1, 2, ...; `rows`: how many.

    A small window is read right here, which is quicker than a Spark job; a large one in parallel by the workers.
    """
    if rows <= DRIVER_ROWS:
        return touched_cells(paths, lo, hi, starts)
    edges = F.lit(list(starts)).cast("array<bigint>")
    segment = F.size(F.filter(edges, lambda edge: edge <= F.col("commit_ts")))
    found = mutations(spark(), paths, lo, hi).select("db", "table", segment.alias("segment")).distinct().collect()
    return sorted((row["db"], row["table"], row["segment"]) for row in found)


def net_changes(
    spark: SparkSession, rows: DataFrame, cells: Sequence[Cell], *, routed: bool = False, strict: bool = False
) -> DataFrame:
    """NET_COLUMNS of `rows` (of `mutation`); every row must fall into one of `cells`.

    op: `delete` and `replace` for keyed rows, `delete` and `insert` of `copies` rows for the others. A key with a NULL
    fails the job as SchemaError, and so does, when `routed`, a key that two tables of the source write (hazards R-15),
    and when `strict`, a key whose changes contradict each other (S4-09).
    """
    return _net(key_events(spark, rows, cells, routed=routed), routed=routed, strict=strict)


def key_events(spark: SparkSession, rows: DataFrame, cells: Sequence[Cell], *, routed: bool) -> DataFrame:
    """What each row does to its keys: a column `e` of op, weight (rows that it adds), key and images; EVENT_ORDER.

    With segment, db, table, identity and `columns` of the cell; when `routed`, `source` and `table_id` of the row.
    """
    keyed = _keyed(spark, rows, cells, routed=routed)
    own = ("segment", "db", "table", "identity", "columns", *EVENT_ORDER, *(("source", "table_id") if routed else ()))
    return keyed.select(*own, F.explode(_events()).alias("e"))


def row_origins(spark: SparkSession, rows: DataFrame, cells: Sequence[Cell]) -> DataFrame:
    """(segment, db, table, key, origin) of the keys in `cells` whose row had another key before the segment, or none.

    One task a table and segment: it takes the updates that move a key, in their order.
    """
    moved = _keyed(spark, rows, cells).where("before_key != after_key")
    narrow = moved.select("segment", "db", "table", *EVENT_ORDER, "before_key", "after_key")
    return narrow.groupBy("segment", "db", "table").applyInArrow(_traced, ORIGINS)


def _traced(moves: pa.Table) -> pa.Table:
    ordered = moves.sort_by([(name, "ascending") for name in EVENT_ORDER])
    pairs = zip(ordered["before_key"].to_pylist(), ordered["after_key"].to_pylist(), strict=True)
    found = origins(pairs)
    place = [pa.array([ordered[name][0].as_py()] * len(found), ordered[name].type) for name in ORIGIN_PLACE]
    keys = [pa.array(list(found), pa.string()), pa.array(list(found.values()), pa.string())]
    return pa.Table.from_arrays([*place, *keys], names=[*ORIGIN_PLACE, "key", "origin"])


def _keyed(spark: SparkSession, rows: DataFrame, cells: Sequence[Cell], *, routed: bool = False) -> DataFrame:
    """The rows that fall into `cells`, with the keys of both images."""
    shapes = {shape: number for number, shape in enumerate(dict.fromkeys(map(_shape, cells)))}
    found = [(*astuple(cell), shapes[_shape(cell)]) for cell in cells]
    places = F.broadcast(local_frame(spark, found, f"{CELLS}, shape INT"))
    here = (
        (F.col("m.db") == F.col("c.db"))
        & (F.col("m.table") == F.col("c.table"))
        & (F.col("m.commit_ts") >= F.col("c.since"))
        & (F.col("m.commit_ts") < F.col("c.until"))
    )
    placed = rows.alias("m").join(places.alias("c"), here)
    own = [F.col(f"c.{name}") for name in ("segment", "db", "table", "identity", "columns", "filled")]
    # Keys are used more than once behind this: a column of their own is computed once.
    keys = [_key(f"m.{image}", list(shapes)).alias(f"{image}_key") for image in ("before", "after")]
    images = [_completed(f"m.{image}", list(shapes)).alias(image) for image in ("before", "after")]
    source = [F.concat_ws(".", "m.source_db", "m.source_table").alias("source"), F.col("m.table_id")] if routed else []
    return placed.select(*own, *EVENT_ORDER, *images, *keys, *source)


Shape = tuple[str, tuple[str, ...], tuple[str | None, ...]]


def _shape(cell: Cell) -> Shape:
    return cell.identity, cell.columns, cell.filled


def _key(image: str, shapes: list[Shape]) -> Column:
    """The key of a row as JSON. Common shapes get an expression of their own, which Spark compiles; others a loop."""
    key = F.to_json(_values(image))
    for number, (_, columns, filled) in enumerate(shapes[:COMPILED_SHAPES]):
        key = F.when(F.col("c.shape") == number, _compiled(image, columns, filled)).otherwise(key)
    broken = F.exists(_values(image), lambda value: value.isNull())
    bad = (F.col("c.identity") != "row") & key.contains("null") & broken
    return F.when(F.col(image).isNotNull(), F.when(bad, _null_key()).otherwise(key))


def _completed(image: str, shapes: list[Shape]) -> Column:
    """The image with the key columns that it lacks: a DELETE finds its row by them (tidb-binlog 5.5)."""
    lacks = _lacks_any(image)
    for number, (_, columns, filled) in enumerate(shapes[:COMPILED_SHAPES]):
        known = [name for name, default in zip(columns, filled, strict=True) if default is not None]
        lacks = F.when(F.col("c.shape") == number, _lacks(image, known)).otherwise(lacks)
    missing = F.map_filter(F.map_from_arrays("columns", "filled"), lambda name, _: ~_has(image, name))
    keyed = F.col("c.identity") != "row"
    return F.when(keyed & lacks, F.map_concat(F.col(image), missing)).otherwise(F.col(image))


def _lacks(image: str, names: Sequence[str]) -> Column:
    return reduce(or_, [~_has(image, F.lit(name)) for name in names], F.lit(False))


def _lacks_any(image: str) -> Column:
    return F.exists("columns", lambda name: ~_has(image, name))


def _has(image: str, name: Column) -> Column:
    return F.map_contains_key(F.col(image), name)


def _compiled(image: str, columns: Sequence[str], filled: Sequence[str | None]) -> Column:
    parts = [_json(_or_filled(image, name, default)) for name, default in zip(columns, filled, strict=True)]
    return F.concat(F.lit("["), F.concat_ws(",", *parts), F.lit("]"))


def _or_filled(image: str, name: str, default: str | None) -> Column:
    value = F.col(image)[name]
    if default is None:
        return value
    return F.when(value.isNull() & ~F.map_contains_key(F.col(image), F.lit(name)), F.lit(default)).otherwise(value)


def _json(value: Column) -> Column:
    """A text as JSON, as `to_json` writes it; plain ones, which most are, without its cost."""
    quoted = F.to_json(F.array(value))
    return (
        F.when(value.isNull(), "null")
        .when(value.rlike(_SPECIAL), F.substring(quoted, F.lit(2), F.length(quoted) - 2))
        .otherwise(F.concat(F.lit('"'), value, F.lit('"')))
    )


EVENT_ORDER = ("commit_ts", "start_ts", "seq")


def _events() -> Column:
    before, after = _image("before"), _image("after")
    rowwise = F.col("identity") == "row"
    moved = F.col("before_key") != F.col("after_key")
    ends = F.col("before").isNotNull() & (rowwise | F.col("after").isNull() | moved)
    came = F.when(ends | F.col("before").isNull(), 1).otherwise(0)
    return F.filter(
        F.array(
            F.when(ends, _event("delete", F.lit(-1), "before_key", before, before)),
            # A row that keeps its key brings its old image along: the first one seen is what a delete shows.
            F.when(F.col("after").isNotNull(), _event("replace", came, "after_key", after, F.when(~ends, before))),
        ),
        lambda event: event.isNotNull(),
    )


def _image(name: str) -> Column:
    # The image of a keyless row is its key: complete, so that equal rows are equal images.
    whole = F.map_from_arrays("columns", _values(name))
    return F.when(F.col("identity") == "row", whole).otherwise(F.col(name))


def _values(image: str) -> Column:
    """The identity's texts by a loop over its columns: for any shape."""
    return F.transform(F.arrays_zip("columns", "filled"), lambda column: _value(image, column))


def _value(image: str, column: Column) -> Column:
    name, filled = column["columns"], column["filled"]
    return F.when(F.map_contains_key(F.col(image), name), F.col(image)[name]).otherwise(filled)


def _null_key() -> Column:
    where = {"table": F.concat_ws(".", "c.db", "c.table"), "commit_ts": F.col("m.commit_ts").cast("string")}
    return F.raise_error(_refusal("a key column is NULL or absent", where))


def _refusal(message: str, where: Mapping[str, Column], hint: str = "") -> Column:
    """The text of a SchemaError and its place; by the class name the driver knows it as ours (spark_jobs.failures)."""
    places = F.concat_ws(" ", *(F.concat(F.lit(f"{name}="), value) for name, value in where.items()))
    end = f"] Hint: {hint}" if hint else "]"
    return F.concat(F.lit(f"binlake.errors.SchemaError: {message} ["), places, F.lit(end))


def _key_in_log(key: Column) -> Column:
    """`binlake.redaction.key_in_log` in Spark's words."""
    return key if are_row_values_shown() else F.concat(F.lit("#"), F.substring(F.sha2(key, 256), 1, MARK_DIGITS))


def _event(op: str, weight: Column, key: str, image: Column, old: Column) -> Column:
    return F.struct(
        F.lit(op).alias("op"),
        weight.alias("weight"),
        F.col(key).alias("key"),
        image.alias("image"),
        old.alias("old"),
    )


def _clash() -> Column:
    """A key that two tables write: one would undo the other. The same table under a new name is one table."""
    two = (F.min("source") != F.max("source")) & (F.min("table_id") != F.max("table_id"))
    where = {
        "table": F.concat_ws(".", F.first("db"), F.first("table")),
        "key": _key_in_log(F.first("e.key")),
        "sources": F.concat_ws(",", F.min("source"), F.max("source")),
        "commit_ts": F.max("commit_ts").cast("string"),
    }
    hint = "make the keys disjoint, or tell the tables apart by extract-table in `routes`"
    text = _refusal("two tables of the source write one key of their common target", where, hint)
    return F.when(two & (F.first("identity") != "row"), F.raise_error(text).cast("int")).otherwise(F.lit(0))


def _possible() -> Column:
    """Of a key's sums: its changes add up to what the first and the last one say of it (`binlake.rowchange.net`)."""
    left = F.when(F.col("last.op") == "replace", 1).otherwise(0)
    where = {"table": F.concat_ws(".", "db", "table"), "key": _key_in_log(F.col("key"))}
    where |= {name: F.col(name).cast("string") for name in ("first_commit_ts", "last_commit_ts")}
    text = _refusal(CONTRADICTION, where, CONTRADICTION_HINT)
    bad = (F.col("identity") != "row") & (F.col("net") != left - F.col("was_there"))
    return F.when(bad, F.raise_error(text).cast("boolean")).otherwise(F.lit(True))


def _net(events: DataFrame, *, routed: bool, strict: bool) -> DataFrame:
    # A change of weight 0 keeps its row, one of weight -1 ends it: both found it.
    there = F.when(F.col("e.weight") == 1, 0).otherwise(1)
    grouped = events.groupBy("segment", "db", "table", "identity", F.col("e.key").alias("key")).agg(
        F.max_by(F.struct("e.op", "e.image"), F.struct(*EVENT_ORDER)).alias("last"),
        F.min_by("e.old", F.when(F.col("e.old").isNotNull(), F.struct(*EVENT_ORDER))).alias("old"),
        F.sum("e.weight").alias("net"),
        F.min("commit_ts").alias("first_commit_ts"),
        F.max("commit_ts").alias("last_commit_ts"),
        F.count("*").alias("mutations"),
        *([_clash().alias("clash")] if routed else []),
        *([F.min_by(there, F.struct(*EVENT_ORDER)).alias("was_there")] if strict else []),
    )
    # A column that nobody reads would not be computed.
    grouped = grouped.where("clash = 0") if routed else grouped
    grouped = grouped.where(_possible()) if strict else grouped
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
