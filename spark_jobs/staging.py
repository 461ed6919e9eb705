"""What land pulled, written once: pulling again could give other rows, so all that follows works on these files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.window.plan import Member
from spark_jobs.context import Bounds, StageContext
from spark_jobs.pump_source import SCHEMA_DDL, PumpPull


def pull(ctx: StageContext, cluster_id: int, members: list[Member], bounds: Bounds) -> DataFrame:
    """Every member's part of (lo, hi] with its proof row, staged as Parquet below the lake; columns of `SCHEMA_DDL`."""
    folder = ctx.paths.staging(str(bounds.lo))
    # What a dead attempt left is worthless: its pull has no proof.
    shutil.rmtree(folder, ignore_errors=True)
    pumps = tuple((member.node_id, member.host) for member in members if not member.drained(bounds.lo))
    source = PumpPull(pumps, cluster_id, bounds.lo, bounds.hi, ctx.replication.source.timeout_s).frame(ctx.spark)
    source.write.mode("overwrite").parquet(folder)
    return ctx.spark.read.schema(SCHEMA_DDL).parquet(folder)


@dataclass(frozen=True)
class PumpPart:
    """One pump's part: commit_ts of its proof (0 = none), transactions, DDL among them, newest schema version."""

    proof: int
    entities: int
    ddls: int
    schema_version: int


NOTHING = PumpPart(0, 0, 0, 0)


def survey(pulled: DataFrame, bounds: Bounds) -> dict[str, PumpPart]:
    """What each pump gave for `bounds`, by node id."""
    kind, inside = F.col("kind"), F.col("commit_ts").between(bounds.lo + 1, bounds.hi) & (F.col("chunk") == 0)
    found = pulled.groupBy("pump").agg(
        F.coalesce(F.max(F.when(kind == "proof", F.col("commit_ts"))), F.lit(0)),
        F.count_if(inside & (kind != "proof")),
        F.count_if(inside & (kind == "ddl")),
        F.coalesce(F.max(F.when(inside & (kind == "dml"), F.col("schema_version"))), F.lit(0)),
    )
    return {pump: PumpPart(*values) for pump, *values in found.collect()}


def transactions(pulled: DataFrame, bounds: Bounds) -> DataFrame:
    """Rows of `binlog` within `bounds`: one transaction per commit_ts, whichever pump it came from.

    The same transaction may come from two pumps (a client that timed out, tidb-binlog 4): the least node id wins, so
    that a second attempt keeps the same one.
    """
    rows = pulled.where(F.col("kind") != "proof")
    rows = rows.where(f"commit_ts > {bounds.lo} AND commit_ts <= {bounds.hi}")
    chosen = rows.groupBy("commit_ts").agg(F.min("pump").alias("chosen"))
    rows = rows.join(chosen, "commit_ts").where(F.col("pump") == F.col("chosen"))
    day = F.to_date(F.timestamp_millis(F.shiftright("commit_ts", 18)))
    return rows.dropDuplicates(["commit_ts", "chunk"]).withColumn("commit_date", day).drop("chosen")
