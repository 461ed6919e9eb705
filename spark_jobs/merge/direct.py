"""Writes rows of `mutation` where they are decoded: tasks write files, the driver commits their names in one commit.

They take the place of the files that an earlier run of the window wrote. Files of a lost or repeated attempt are never
committed (`binlake.lake.parts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable

from binlake.lake.payloads import PayloadRange
from binlake.lake.tables import BINLOG, MUTATION
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.lakerows import list_history_rows
from binlake.spark_jobs.engine.rows import Rows, pack_rows
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.decoding import DecodedFiles, Decoder, MergeTask, Payloads
from binlake.spark_jobs.job.lake import replace_history
from binlake.spark_jobs.job.passed import LandedWindow


@dataclass(frozen=True)
class WrittenRows:
    """The number of rows written, what was left out by reason, where the rows are, and how many are of a full load that
    came in blocks (`base`)."""

    count: int
    left_out: dict[str, int]
    parts: tuple[Rows, ...]
    base: int = 0


def write_rows(
    ctx: StageContext,
    engine: Engine,
    payloads: PayloadRange,
    decoder: Decoder,
    note: Mapping[str, str],
    landed: LandedWindow | None = None,
    opened: DeltaTable | None = None,
) -> WrittenRows:
    """Replace the rows of the range by those of `payloads`. The caller holds the table's lock.

    `landed`: the range's rows of `binlog`, if land wrote them in this process; `opened`: as in `replace_history`.
    Raises what a Decoder raises, Transient.
    """
    folder = ctx.paths.locate_table(MUTATION.name)
    task = MergeTask(payloads, decoder, folder, engine.build_keeper())
    written = engine.run(task, _list_payloads(ctx, engine, payloads, landed))
    return commit_rows(ctx, written, payloads, note, opened)


def commit_rows(
    ctx: StageContext,
    written: Sequence[DecodedFiles],
    payloads: PayloadRange,
    note: Mapping[str, str],
    opened: DeltaTable | None = None,
) -> WrittenRows:
    """Replace the rows of the range by those of `written`. Raises Transient."""
    parts = [part for one in written for part in one.parts]
    replace_history(ctx.paths, MUTATION, payloads.lo, payloads.hi, parts, note, opened)
    left_out: Counter[str] = Counter()
    for one in written:
        left_out.update(one.left_out)
    found = tuple(rows for one in written for rows in one.list_rows())
    base = sum(one.base for one in written)
    return WrittenRows(sum(part.rows for part in parts), dict(sorted(left_out.items())), found, base)


def _list_payloads(
    ctx: StageContext, engine: Engine, payloads: PayloadRange, landed: LandedWindow | None
) -> list[Payloads]:
    """The landed rows as inputs of tasks."""
    rows: Sequence[Rows]
    if landed is None:
        rows = list_history_rows(ctx.paths, BINLOG, payloads.lo, payloads.hi, engine.task_bytes)
    else:
        # A task is dear where there are many machines, and pulls leave small files.
        rows = pack_rows(landed.rows, engine.task_bytes)
    joined = []
    for commit_ts in payloads.joined:
        own = list_history_rows(ctx.paths, BINLOG, commit_ts - 1, commit_ts, engine.task_bytes)
        joined.append(Payloads(tuple(own), commit_ts))
    return [*(Payloads((one,)) for one in rows), *joined]
