"""What follows finalize: tables that a DDL changed by itself are compared, when the window is applied and recorded.

It is no part of the stage, so that finalize needs nothing of `binlake.repair`.
"""

from __future__ import annotations

from dataclasses import replace

from binlake.lake.duetables import DUE
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.results import StageResult


def compare_after_apply(ctx: StageContext, result: StageResult) -> StageResult:
    """`result` of finalize, with the outcomes of the comparisons that were due."""
    if not result.detail.get(DUE):
        return result
    # Imported late: few windows have such a DDL, and comparing needs many modules.
    from binlake.repair.verify.afterddl import compare_due_tables

    outcomes = compare_due_tables(ctx.replication, ctx.windows, result.hi, ctx.run_id)
    if not outcomes:
        return result
    return replace(result, detail={**result.detail, "verified_after_ddl": [one.to_dict() for one in outcomes]})
