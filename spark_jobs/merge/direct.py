"""Writes rows of `mutation` where they are decoded: in the driver for a small window, in tasks for a large one.

Tasks read the files of `binlog`, write files and return their names. The driver commits all names in one commit, in
place of the files that an earlier run of the window wrote. Files of a lost or repeated attempt are never committed
(`binlake.lake.parts`). If existing files also hold rows of other windows, or only Spark commits to the table, the new
files are written to a staging folder, and their rows replace the window's rows.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.transaction import RemoveAction

from binlake.base.lakecolumns import Mutation
from binlake.lake.features import can_delta_rs_commit
from binlake.lake.opentable import load_table
from binlake.lake.parts import Part
from binlake.lake.paths import LakePaths
from binlake.lake.payloads import PayloadRange
from binlake.lake.tables import BINLOG, MUTATION
from binlake.rows.codec import MUTATION_SCHEMA
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.job.handover import MOST_BYTES
from spark_jobs.job.lake import Rows, clear_rows, commit_parts, commit_ts_predicate, may_have_rows, overwrite
from spark_jobs.merge.decode import Decoder, Held, Shares, ShareWriter, Written


def find_replaceable_files(paths: LakePaths, lo: int, hi: int) -> list[RemoveAction] | None:
    """The files of `mutation` that hold only the window's rows; None if they cannot be replaced as whole files.

    That is so if maintenance rewrote a day with other windows, or if delta-rs does not commit to the table.
    """
    if not can_delta_rs_commit(paths, MUTATION):
        return None
    if not may_have_rows(paths, MUTATION, commit_ts_predicate(lo, hi)):
        return []
    now, removals = int(time.time() * 1000), []
    for add in pa.table(load_table(paths.locate_table(MUTATION.name)).get_add_actions(flatten=True)).to_pylist():
        least, most = add.get(f"min.{Mutation.COMMIT_TS}"), add.get(f"max.{Mutation.COMMIT_TS}")
        known = least is not None and most is not None
        if known and (least > hi or most <= lo):
            continue
        if not known or least <= lo or most > hi:
            return None
        day = {Mutation.COMMIT_DATE: add[f"partition.{Mutation.COMMIT_DATE}"].isoformat()}
        removals.append(RemoveAction(add["path"], True, now, add["size_bytes"], day))
    return removals


def split_into_shares(paths: LakePaths, payloads: PayloadRange, decoder: Decoder) -> Shares:
    """The `payloads` in the files of `binlog`, divided into shares."""
    binlog = load_table(paths.locate_table(BINLOG.name))
    uris = binlog.file_uris(file_pruning_predicate=commit_ts_predicate(payloads.lo, payloads.hi))
    # The paths are URL-encoded.
    files = [unquote(uri.removeprefix("file://")) for uri in uris]
    return Shares(tuple(payloads.split_into_shares(files)), payloads, decoder)


def write_rows(
    ctx: StageContext, payloads: PayloadRange, decoder: Decoder, note: Mapping[str, str], *, here: bool
) -> tuple[int, dict[str, int]]:
    """Replace the rows of the range by those of `payloads`: (number of rows, what was left out by reason).

    `here`: the driver decodes them all and puts them into the handover. The caller holds the table's lock. Raises what
    a Decoder raises, Transient.
    """
    shares = split_into_shares(ctx.paths, payloads, decoder)
    replaced = find_replaceable_files(ctx.paths, payloads.lo, payloads.hi)
    folder = (
        ctx.paths.locate_table(MUTATION.name)
        if replaced is not None
        else ctx.paths.locate_staging(f"merge-{payloads.lo}")
    )
    writer = ShareWriter(shares, folder)
    held = Held(MOST_BYTES if ctx.replication.target is not None else 0)
    written = [writer.write(range(len(shares.shares)), held)] if here else _write_by_tasks(ctx, writer)
    parts = [part for one in written for part in one.parts]
    if replaced is None:
        try:
            _rewrite(ctx, Bounds(payloads.lo, payloads.hi), _read_parts(ctx, folder, parts, here=here), note)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    elif parts or replaced:
        commit_parts(ctx.paths, MUTATION, parts, replaced, note)
    if here and (rows := held.build_table()) is not None:
        ctx.handover.put(MUTATION, Bounds(payloads.lo, payloads.hi), rows)
    left_out: Counter[str] = Counter()
    for one in written:
        left_out.update(one.left_out)
    return sum(part.rows for part in parts), dict(sorted(left_out.items()))


def _write_by_tasks(ctx: StageContext, writer: ShareWriter) -> list[Written]:
    count = len(writer.shares.shares)
    if not count:
        return []
    frame = ctx.spark.range(0, count, 1, count).mapInArrow(writer, "written STRING")
    return [Written.from_json(row[0]) for row in frame.collect()]


def _read_parts(ctx: StageContext, folder: str, parts: Sequence[Part], *, here: bool) -> Rows | None:
    """The rows of files that are in no table; None if there are no files."""
    files = [f"{folder}/{part.path}" for part in parts]
    if not files:
        return None
    if not here:
        return ctx.spark.read.schema(MUTATION.build_spark_schema()).option("basePath", folder).parquet(*files)
    days = ds.partitioning(pa.schema([MUTATION_SCHEMA.field(Mutation.COMMIT_DATE)]), flavor="hive")
    return ds.dataset(files, MUTATION_SCHEMA, partitioning=days, partition_base_dir=folder).to_table()


def _rewrite(ctx: StageContext, bounds: Bounds, rows: Rows | None, note: Mapping[str, str]) -> None:
    """Replace the window's rows by `rows` when existing files also hold rows of other windows."""
    predicate = commit_ts_predicate(bounds.lo, bounds.hi)
    if rows is None:
        clear_rows(ctx.prepare_rows, ctx.paths, MUTATION, predicate, note)
    else:
        overwrite(rows, ctx.paths, MUTATION, predicate, note)
