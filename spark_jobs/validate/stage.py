"""validate: rows of the applied window are compared with the lake and the source; needs no Spark, fails no window."""

from __future__ import annotations

from binlake.repair.validation import validate
from spark_jobs.job.context import Bounds, StageContext, StageResult


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Compare behind the window `bounds`; what cannot be compared now is postponed, by name."""
    done = validate(ctx.replication, bounds.lo, bounds.hi, ctx.run_id)
    return StageResult("validate", done.state, done.lo, done.hi, done.compared, done.seconds, "", done.detail())
