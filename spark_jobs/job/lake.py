"""The lake tables that stages write: created once with their properties, then overwritten only by exact predicates.

A rerun replaces rows with the same rows (DESIGN 2). txnVersion is never used: a smaller one is silently dropped (R-24).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import ColumnProperties, CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession

from binlake.base import rowhash
from binlake.base.lakecolumns import Binlog, Change, Ddl, History, OfSegment, Statement
from binlake.base.rowhash import Fold
from binlake.errors import Transient
from binlake.lake.damage import describe_storage_text, require_space
from binlake.lake.opentable import open_table
from binlake.lake.parts import Part, write_parts
from binlake.lake.paths import LakePaths
from binlake.lake.tables import SPARK_TABLES, LakeTable, parse_schema

AGAIN = "the stage can run again; let only Binlake maintain these tables"
"""The hint after a refused commit."""
_REPEATED = (
    OfSegment.SEGMENT, OfSegment.DB, OfSegment.TABLE, Statement.PHASE, Statement.KIND, Change.IDENTITY, Change.OP,
    Change.COPIES, Change.MUTATIONS, Ddl.DECISION, Binlog.PUMP,
)  # fmt: skip
# Other texts hardly repeat: dictionaries would cost a fifth of the writing, and names in maps compress well anyway.
_WRITER = WriterProperties(
    compression="ZSTD",
    default_column_properties=ColumnProperties(dictionary_enabled=False),
    column_properties={name: ColumnProperties(dictionary_enabled=True) for name in _REPEATED},
)


def ensure_tables(paths: LakePaths) -> None:
    """Create the tables that are missing. The caller holds the lake's lock `landing`."""
    for table in SPARK_TABLES:
        ensure_table(paths, table)


def ensure_table(paths: LakePaths, table: LakeTable) -> None:
    """Create the table if it is missing. The caller holds the lock under which it is written."""
    place = paths.locate_table(table.name)
    if not DeltaTable.is_deltatable(place):
        # `parquet.block.size` is a setting of Spark's writer that Delta does not know.
        DeltaTable.create(
            place,
            schema=table.build_arrow_schema(),
            partition_by=list(table.partitioned_by) or None,
            description=table.comment,
            configuration=table.build_properties(),
            raise_if_key_not_exists=False,
        )


def read_table(spark: SparkSession, paths: LakePaths, table: LakeTable) -> DataFrame:
    """The table as it is now."""
    return spark.read.format("delta").load(paths.locate_table(table.name))


Rows: TypeAlias = DataFrame | pa.Table
"""Rows derived by Spark, or rows in the driver's memory, which delta-rs writes without a Spark job."""


def overwrite(rows: Rows, paths: LakePaths, table: LakeTable, predicate: str, note: Mapping[str, str]) -> int:
    """Replace the rows that match `predicate` by `rows` (all of which must match it) in one commit.

    Returns the number of rows written. The caller holds the table's lock. `note` goes into the commit's userMetadata
    (`DESCRIBE HISTORY`): run, window, stage. Rows of the driver can only be written to a table that delta-rs commits to
    (`LakeTable.engine`). Raises Transient.
    """
    require_space(paths.locate_table(table.name))
    if isinstance(rows, pa.Table):
        return _overwrite_here(rows, paths, table, predicate, note)
    frame = rows
    writer = frame.select(*table.list_column_names()).write.format("delta")
    if may_have_rows(paths, table, predicate):
        writer = writer.mode("overwrite").option("replaceWhere", predicate)
    else:
        # Nothing to replace, as always except in reruns: this saves the two Spark jobs that would look for old rows.
        writer = writer.mode("append")
    about = encode_note(note)
    writer.option("userMetadata", about).save(paths.locate_table(table.name))
    return _read_commit_row_count(paths, table, about)


def _read_commit_row_count(paths: LakePaths, table: LakeTable, about: str) -> int:
    """The row count in the newest commit with this note; counting the rows themselves would scan them again."""
    own: Iterator[dict[str, Any]] = (
        one for one in DeltaTable(paths.locate_table(table.name)).history(8) if one.get("userMetadata") == about
    )
    counted: Any = next(own, {}).get("operationMetrics", {}).get("numOutputRows")
    if counted is None:
        raise Transient(
            f"the commit to `{table.name}` is not in its log",
            where={"note": about},
            hint=AGAIN,
        )
    return int(counted)


def _overwrite_here(rows: pa.Table, paths: LakePaths, table: LakeTable, predicate: str, note: Mapping[str, str]) -> int:
    about = commit_properties(note)
    place, data = open_table(paths.locate_table(table.name)), rows.select(table.list_column_names())
    try:
        if may_have_rows(paths, table, predicate):
            write_deltalake(place, data, mode="overwrite", predicate=predicate, commit_properties=about,
                            writer_properties=_WRITER)  # fmt: skip
        elif data.num_rows and table.partitioned_by:
            # Nothing to replace: Arrow writes with less CPU and far less memory (bench/README.md).
            parts = write_parts(
                paths.locate_table(table.name), table, [data.cast(parse_schema(table.build_spark_schema()))]
            )
            commit_parts(paths, table, parts, [], note)
        elif data.num_rows:
            write_deltalake(place, data, mode="append", commit_properties=about, writer_properties=_WRITER)
    except (DeltaError, OSError) as error:
        raise Transient(
            f"rows of `{table.name}` could not be written: {describe_storage_text(error)}", hint=AGAIN
        ) from error
    return int(data.num_rows)


def commit_parts(
    paths: LakePaths, table: LakeTable, parts: Sequence[Part], replaced: Sequence[RemoveAction], note: Mapping[str, str]
) -> None:
    """Add the files `parts` to `table` and remove those `replaced`, in one commit. Raises Transient."""
    require_space(paths.locate_table(table.name))
    now = int(time.time() * 1000)
    adds = [AddAction(part.path, part.size, part.values, now, True, part.stats) for part in parts]
    place = open_table(paths.locate_table(table.name))
    try:
        place.create_write_transaction(
            [*adds, *replaced],
            "append",
            place.schema(),
            list(table.partitioned_by),
            commit_properties=commit_properties(note),
        )
    except DeltaError as error:
        raise Transient(
            f"the rows of a window could not be committed: {describe_storage_text(error)}", hint=AGAIN
        ) from error


def encode_note(note: Mapping[str, str]) -> str:
    """The `note` of a commit as the Delta log stores it."""
    return json.dumps(dict(note), sort_keys=True)


def commit_properties(note: Mapping[str, str]) -> CommitProperties:
    """The `note` in the form that a commit by delta-rs takes."""
    return CommitProperties(custom_metadata={"userMetadata": encode_note(note)})


def clear_rows(
    few: Callable[[pa.Table], Rows], paths: LakePaths, table: LakeTable, predicate: str, note: Mapping[str, str]
) -> None:
    """Remove the rows that match `predicate`; no commit if there are none. `few`: as StageContext.prepare_rows."""
    if may_have_rows(paths, table, predicate):
        overwrite(few(build_local_table([], table.build_spark_schema())), paths, table, predicate, note)


def build_local_table(rows: Iterable[Sequence[object]], schema: str) -> pa.Table:
    """A table of `rows` with the columns of a Spark schema text."""
    kinds = parse_schema(schema)
    columns = list(zip(*rows, strict=True)) or [() for _ in kinds]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=kinds)


def commit_ts_predicate(lo: int, hi: int) -> str:
    """The predicate of lo < commit_ts <= hi."""
    return f"{History.COMMIT_TS} > {lo} AND {History.COMMIT_TS} <= {hi}"


def may_have_rows(paths: LakePaths, table: LakeTable, predicate: str) -> bool:
    """False if partitions and statistics show that no file has a row that matches `predicate`."""
    return bool(open_table(paths.locate_table(table.name)).file_uris(file_pruning_predicate=predicate))


FOLD_COLUMNS = "count BIGINT, total BIGINT, xor BIGINT"
"""The columns in which Spark's workers return a fold."""


def fold_of(rows: Rows, columns: Sequence[str]) -> Fold:
    """The fold of all rows: equal for equal rows, wherever they are processed (binlake.base.rowhash)."""

    def fold_part(some: pa.Table) -> pa.Table:
        return build_local_table([encode_fold(rowhash.fold(rowhash.hash_rows(some, columns)))], FOLD_COLUMNS)

    return rowhash.merge_folds(
        decode_folds(collect_rows(map_rows(rows.select(list(columns)), fold_part, FOLD_COLUMNS)))
    )


def encode_fold(fold: Fold) -> tuple[int, int, int]:
    """`fold` as a row of `FOLD_COLUMNS`, as signed BIGINTs."""
    total, xor = (value - (value >> 63 << 64) for value in (fold.total, fold.xor))
    return fold.count, total, xor


def decode_folds(rows: pa.Table) -> list[Fold]:
    """The folds of rows with `FOLD_COLUMNS`."""
    counts, *halves = (rows[name].to_pylist() for name in ("count", "total", "xor"))
    return [Fold(count, total % (1 << 64), xor % (1 << 64)) for count, total, xor in zip(counts, *halves, strict=True)]


def map_rows(rows: Rows, step: Callable[[pa.Table], pa.Table], schema: str) -> Rows:
    """Apply `step`, which returns columns of `schema`: to all `rows` at once here, or to batches in the workers."""
    if isinstance(rows, pa.Table):
        return step(rows)

    def map_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from step(pa.Table.from_batches([batch])).to_batches()

    return rows.mapInArrow(map_batches, schema)


def collect_rows(rows: Rows) -> pa.Table:
    """The rows in the driver's memory."""
    return rows if isinstance(rows, pa.Table) else rows.toArrow()
