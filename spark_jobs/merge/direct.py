"""Rows of `mutation` written where they are decoded, by the driver for a small window, by tasks for a large one.

None of them passes through the JVM, but where only Spark can take the place of what is there. Tasks read the files of
`binlog`, write files of their own and tell their names; the driver commits those names at once, in the place of the
files that an earlier run of the window wrote. What a lost or repeated attempt wrote is named by nobody
(`binlake.lake.parts`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from binlake.base.lakecolumns import Mutation
from binlake.lake.features import delta_rs_commits
from binlake.lake.paths import LakePaths
from binlake.lake.payloads import PayloadRange
from binlake.lake.tables import BINLOG, MUTATION
from binlake.rows.codec import MUTATION_SCHEMA
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.job.handover import MOST_BYTES
from spark_jobs.job.lake import commit_parts, commit_ts_predicate, may_have_rows, overwrite
from spark_jobs.merge.counting import count_of, counted, losses
from spark_jobs.merge.decode import Decoder, Held, ShareRows, Shares, ShareWriter, Written


def replaceable(paths: LakePaths, lo: int, hi: int) -> list[RemoveAction] | None:
    """The files of `mutation` with the window's rows and no others; None where Spark has to replace them.

    That is where a day was laid out with other windows, and where delta-rs does not commit to the table.
    """
    if not delta_rs_commits(paths, MUTATION):
        return None
    if not may_have_rows(paths, MUTATION, commit_ts_predicate(lo, hi)):
        return []
    now, found = int(time.time() * 1000), []
    for add in pa.table(DeltaTable(paths.table(MUTATION.name)).get_add_actions(flatten=True)).to_pylist():
        least, most = add.get(f"min.{Mutation.COMMIT_TS}"), add.get(f"max.{Mutation.COMMIT_TS}")
        known = least is not None and most is not None
        if known and (least > hi or most <= lo):
            continue
        if not known or least <= lo or most > hi:
            return None
        day = {Mutation.COMMIT_DATE: add[f"partition.{Mutation.COMMIT_DATE}"].isoformat()}
        found.append(RemoveAction(add["path"], True, now, add["size_bytes"], day))
    return found


def shares_of(paths: LakePaths, payloads: PayloadRange, decoder: Decoder) -> Shares:
    """What the files of `binlog` have of `payloads`, in shares."""
    binlog = DeltaTable(paths.table(BINLOG.name))
    found = binlog.file_uris(file_pruning_predicate=commit_ts_predicate(payloads.lo, payloads.hi))
    # They come as parts of a URI.
    files = [unquote(uri.removeprefix("file://")) for uri in found]
    return Shares(tuple(payloads.shares(files)), payloads, decoder)


def write_rows(
    ctx: StageContext, payloads: PayloadRange, decoder: Decoder, note: Mapping[str, str], *, here: bool
) -> tuple[int, dict[str, int]]:
    """Put the rows of `payloads` in the place of those of their range: (their number, what was left out by reason).

    `here`: the driver decodes them all, and hands them over. Caller holds the table's lock. Raises what a Decoder
    raises, Transient.
    """
    shares = shares_of(ctx.paths, payloads, decoder)
    replaced = replaceable(ctx.paths, payloads.lo, payloads.hi)
    if replaced is None:
        return _rewritten(ctx, shares, note, here=here)
    writer = ShareWriter(shares, ctx.paths.table(MUTATION.name))
    held = Held(MOST_BYTES if ctx.replication.target is not None else 0)
    written = [writer.write(range(len(shares.shares)), held)] if here else _by_tasks(ctx, writer)
    parts = [part for one in written for part in one.parts]
    if parts or replaced:
        commit_parts(ctx.paths, MUTATION, parts, replaced, note)
    if here and (rows := held.rows()) is not None:
        ctx.handover.put(MUTATION, Bounds(payloads.lo, payloads.hi), rows)
    left_out: Counter[str] = Counter()
    for one in written:
        left_out.update(one.left_out)
    return sum(part.rows for part in parts), dict(sorted(left_out.items()))


def _by_tasks(ctx: StageContext, writer: ShareWriter) -> list[Written]:
    count = len(writer.shares.shares)
    if not count:
        return []
    frame = ctx.spark.range(0, count, 1, count).mapInArrow(writer, "written STRING")
    return [Written.from_json(row[0]) for row in frame.collect()]


def _rewritten(ctx: StageContext, shares: Shares, note: Mapping[str, str], *, here: bool) -> tuple[int, dict[str, int]]:
    """The same where files have rows of other windows too: they are written again without those of this one."""
    predicate, count = commit_ts_predicate(shares.payloads.lo, shares.payloads.hi), len(shares.shares)
    if here:
        left_out: Counter[str] = Counter()
        rows = pa.Table.from_batches(shares.rows(range(count), left_out), MUTATION_SCHEMA)
        return overwrite(rows, ctx.paths, MUTATION, predicate, note), dict(sorted(left_out.items()))
    decoded = ctx.spark.range(0, count, 1, max(count, 1)).mapInArrow(ShareRows(shares), MUTATION.schema())
    frame, tally = counted(decoded)
    overwrite(frame, ctx.paths, MUTATION, predicate, note)
    return count_of(tally), losses(tally)
