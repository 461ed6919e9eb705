"""A large window as Spark pulled it, written once: pulling again could give other rows, so all that follows works on
these files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.context import Bounds, StageContext
from spark_jobs.lake import within
from spark_jobs.pulled import PulledDdl, PumpPart, ddls_of
from spark_jobs.pump_source import SCHEMA_DDL, PumpPull


@dataclass(frozen=True)
class Staged:
    """A `Pulled` in files below the lake; `rows` have the columns of `SCHEMA_DDL`."""

    rows: DataFrame

    @classmethod
    def by(cls, ctx: StageContext, pull: PumpPull) -> Staged:
        """Pull in the workers. What they raise comes as Spark's error (spark_jobs.failures)."""
        folder = ctx.paths.staging(str(pull.lo))
        # What a dead attempt left is worthless: its pull has no proof.
        shutil.rmtree(folder, ignore_errors=True)
        pull.frame(ctx.spark).write.mode("overwrite").parquet(folder)
        return cls(ctx.spark.read.schema(SCHEMA_DDL).parquet(folder))

    def survey(self, bounds: Bounds) -> dict[str, PumpPart]:
        """As Pulled."""
        kind, inside = F.col("kind"), F.col("commit_ts").between(bounds.lo + 1, bounds.hi) & (F.col("chunk") == 0)
        found = self.rows.groupBy("pump").agg(
            F.coalesce(F.max(F.when(kind == "proof", F.col("commit_ts"))), F.lit(0)),
            F.count_if(inside & (kind != "proof")),
            F.count_if(inside & (kind == "ddl")),
            F.coalesce(F.max(F.when(inside & (kind == "dml"), F.col("schema_version"))), F.lit(0)),
        )
        return {pump: PumpPart(*values) for pump, *values in found.collect()}

    def conflict(self, bounds: Bounds) -> int | None:
        """As Pulled."""
        conflict = (
            self._parts(bounds).groupBy("commit_ts").agg(F.min("content").alias("a"), F.max("content").alias("b"))
        )
        least: int | None = conflict.where(F.col("a") != F.col("b")).agg(F.min("commit_ts")).collect()[0][0]
        return least

    def ddls(self, bounds: Bounds) -> list[PulledDdl]:
        """As Pulled."""
        rows = self._parts(bounds).where((F.col("kind") == "ddl") & (F.col("chunk") == 0))
        return ddls_of(map(tuple, rows.select("commit_ts", "job_id", "query", "schema_state").distinct().collect()))

    def first_row(self, since: int, version: int = 0) -> int | None:
        """As Pulled."""
        own = (F.col("kind") == "dml") & (F.col("schema_version") >= version) & (F.col("commit_ts") >= since)
        found: int | None = self.rows.where(own).agg(F.min("commit_ts")).collect()[0][0]
        return found

    def transactions(self, bounds: Bounds) -> DataFrame:
        """As Pulled."""
        rows = self._parts(bounds)
        chosen = rows.groupBy("commit_ts").agg(F.min("pump").alias("chosen"))
        rows = rows.join(chosen, "commit_ts").where(F.col("pump") == F.col("chosen"))
        day = F.to_date(F.timestamp_millis(F.shiftright("commit_ts", 18)))
        return rows.dropDuplicates(["commit_ts", "chunk"]).withColumn("commit_date", day).drop("chosen")

    def _parts(self, bounds: Bounds) -> DataFrame:
        rows = self.rows.where(F.col("kind") != "proof")
        return rows.where(within(bounds.lo, bounds.hi))
