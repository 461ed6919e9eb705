"""The Spark-written tables: created once with their properties, overwritten by exact predicate only.

A rerun writes the same rows to the same place (DESIGN 2). Never txnVersion: a smaller one is dropped in silence (R-24).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from binlake.lake.paths import LakePaths
from binlake.lake.tables import SPARK_TABLES, LakeTable, arrow_schema


def ensure_tables(spark: SparkSession, paths: LakePaths, retention_days: int) -> None:
    """Create the tables that are missing. Caller holds the lake's lock `landing`."""
    for table in SPARK_TABLES:
        if not DeltaTable.is_deltatable(paths.table(table.name)):
            spark.sql(_create_sql(table, paths.table(table.name), retention_days))


def read(spark: SparkSession, paths: LakePaths, table: LakeTable) -> DataFrame:
    """The table as it is now."""
    return spark.read.format("delta").load(paths.table(table.name))


def local_frame(spark: SparkSession, rows: Iterable[Sequence[object]], schema: str) -> DataFrame:
    """The few `rows` of a driver as a DataFrame: through Arrow they are part of the plan and need no Spark job."""
    kinds = arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) or [[] for _ in kinds]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds.types, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=kinds))


def overwrite(frame: DataFrame, paths: LakePaths, table: LakeTable, predicate: str, note: Mapping[str, str]) -> int:
    """Replace the rows that match `predicate` by `frame` (all of which must match it) in one commit; the rows written.

    Caller holds the table's lock. `note` goes into the commit's userMetadata (`DESCRIBE HISTORY`): run, window, stage.
    """
    writer = frame.select(*table.column_names()).write.format("delta")
    if may_have(paths, table, predicate):
        writer = writer.mode("overwrite").option("replaceWhere", predicate)
    else:
        # Nothing to replace, as in all but reruns: two Spark jobs that would look for it are saved.
        writer = writer.mode("append")
    writer.option("userMetadata", json.dumps(dict(note), sort_keys=True)).save(paths.table(table.name))
    # The commit's own count: reading it back would scan the rows again.
    metrics = DeltaTable(paths.table(table.name)).history(1)[0]["operationMetrics"]
    return int(metrics.get("numOutputRows", 0))


def clear(spark: SparkSession, paths: LakePaths, table: LakeTable, predicate: str, note: Mapping[str, str]) -> None:
    """Remove the rows that match `predicate`; no commit when there are none."""
    if may_have(paths, table, predicate):
        overwrite(local_frame(spark, [], table.schema()), paths, table, predicate, note)


def may_have(paths: LakePaths, table: LakeTable, predicate: str) -> bool:
    """False when no file can have a row that matches `predicate`, by partitions and statistics."""
    return bool(DeltaTable(paths.table(table.name)).file_uris(file_pruning_predicate=predicate))


def folds(frame: DataFrame, columns: list[str]) -> list[Column]:
    """Aggregates whose values make a digest of `columns` that does not depend on the order of rows."""
    hashed = F.xxhash64(*[_hashable(frame, name) for name in columns])
    return [F.count(hashed), F.sum(hashed.cast("decimal(38,0)")), F.bit_xor(hashed)]


def folded(values: Sequence[object]) -> str:
    """The digest of the values of `folds`: SHA-256 over count, sum and exclusive or of 64-bit hashes."""
    return hashlib.sha256(":".join(map(str, values)).encode()).hexdigest()


def _hashable(frame: DataFrame, name: str) -> Column:
    # Maps cannot be hashed and their entries have no order: sort them.
    kind = frame.schema[name].dataType.typeName()
    return F.array_sort(F.map_entries(F.col(name))) if kind == "map" else F.col(name)


def _create_sql(table: LakeTable, path: str, retention_days: int) -> str:
    days = retention_days if table.audit else min(retention_days, 7)
    properties = {
        "delta.deletedFileRetentionDuration": f"interval {days} days",
        "delta.logRetentionDuration": f"interval {max(days, 30)} days",
        "delta.enableInCommitTimestamps": "true",
        "delta.checkpointInterval": "50",
        **table.properties,
    }
    options = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    partitions = f" PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
    return (
        f"CREATE TABLE delta.`{path}` ({table.schema_ddl()}) USING DELTA{partitions} "
        f"COMMENT '{table.comment}' TBLPROPERTIES ({options})"
    )
