"""A large window pulled by Spark and written to files once: a second pull could return other rows, so everything that
follows reads these files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from spark_jobs.job.context import StageContext
from spark_jobs.job.lake import Rows, collect_rows, map_rows
from spark_jobs.land.pulled import Question
from spark_jobs.land.pump_source import SCHEMA_DDL, PumpPull


@dataclass(frozen=True)
class Staged:
    """`PulledRows` in files in the lake's folder; `rows` have the columns of `SCHEMA_DDL`."""

    rows: DataFrame

    @classmethod
    def pull_in_workers(cls, ctx: StageContext, pull: PumpPull, lo: int, before: pa.Table | None = None) -> Staged:
        """Pull in the workers, for the window that starts at `lo`; `before`: rows before the pulled range.

        Errors of the workers arrive as Spark's error (spark_jobs.job.failures).
        """
        folder = ctx.paths.locate_staging(str(lo))
        # Remove what a dead attempt left: its pull has no proof.
        shutil.rmtree(folder, ignore_errors=True)
        pull.build_frame(ctx.spark).write.mode("overwrite").parquet(folder)
        if before is not None:
            pq.write_table(before, f"{folder}/before.parquet", compression="zstd")
        return cls(ctx.spark.read.schema(SCHEMA_DDL).parquet(folder))

    def ask(self, question: Question) -> pa.Table:
        """As PulledRows."""
        return collect_rows(self.ask_in_place(question))

    def ask_in_place(self, question: Question) -> Rows:
        """As PulledRows."""
        return map_rows(self.rows.select(*question.columns), question, question.answer)
