"""validate: compares rows of the applied window with the lake and the source; needs no Spark, fails no window."""

from __future__ import annotations

from binlake.extras.validation import validate
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Compare the rows that the window `bounds` changed; those that cannot be compared yet are listed and postponed."""
    done = validate(ctx.replication, bounds.lo, bounds.hi, ctx.run_id)
    return StageResult("validate", done.state, done.lo, done.hi, done.compared, done.seconds, "", done.build_detail())
