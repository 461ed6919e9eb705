"""Rows of `mutation` written by the tasks that decode them: none passes through the JVM; a small window needs no task.

Tasks read the files of `binlog`, write files of their own and tell their names; the driver commits those names at once,
in the place of the files that an earlier run of the window wrote.
What a lost or repeated attempt wrote is named by nobody (`binlake.lake.parts`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import SparkSession

from binlake.errors import Transient
from binlake.lake.features import delta_rs_commits
from binlake.lake.parts import DAY, Part
from binlake.lake.paths import LakePaths
from binlake.lake.payloads import PayloadRange
from binlake.lake.tables import BINLOG, MUTATION
from spark_jobs.decode import Decoder, ShareWriter, Written
from spark_jobs.lake import AGAIN, commit_properties, may_have, within


def replaceable(paths: LakePaths, lo: int, hi: int) -> list[RemoveAction] | None:
    """The files of `mutation` with the window's rows and no others; None where Spark has to replace them.

    That is where a day was laid out with other windows, and where delta-rs does not commit to the table.
    """
    if not delta_rs_commits(paths, MUTATION):
        return None
    if not may_have(paths, MUTATION, within(lo, hi)):
        return []
    now, found = int(time.time() * 1000), []
    for add in pa.table(DeltaTable(paths.table(MUTATION.name)).get_add_actions(flatten=True)).to_pylist():
        least, most = add.get("min.commit_ts"), add.get("max.commit_ts")
        known = least is not None and most is not None
        if known and (least > hi or most <= lo):
            continue
        if not known or least <= lo or most > hi:
            return None
        day = {DAY: add[f"partition.{DAY}"].isoformat()}
        found.append(RemoveAction(add["path"], True, now, add["size_bytes"], day))
    return found


def write_directly(
    spark: Callable[[], SparkSession],
    paths: LakePaths,
    payloads: PayloadRange,
    decoder: Decoder,
    note: Mapping[str, str],
    replaced: Sequence[RemoveAction] = (),
    *,
    here: bool = True,
) -> tuple[int, dict[str, int]]:
    """Put the rows of `payloads` in the place of `replaced`: (their number, what the filters left out by reason).

    Caller holds the table's lock; `spark` is asked only for more than one share, unless nothing may be decoded `here`.
    Raises what a Decoder raises, Transient.
    """
    binlog = DeltaTable(paths.table(BINLOG.name))
    found = binlog.file_uris(file_pruning_predicate=within(payloads.lo, payloads.hi))
    # They come as parts of a URI.
    files = [unquote(uri.removeprefix("file://")) for uri in found]
    writer = ShareWriter(tuple(payloads.shares(files)), payloads, decoder, paths.table(MUTATION.name))
    written = _written(spark, writer, here=here)
    parts = [part for one in written for part in one.parts]
    if parts or replaced:
        _commit(paths, parts, replaced, note)
    left_out: Counter[str] = Counter()
    for one in written:
        left_out.update(one.left_out)
    return sum(part.rows for part in parts), dict(sorted(left_out.items()))


def _written(spark: Callable[[], SparkSession], writer: ShareWriter, *, here: bool) -> list[Written]:
    count = len(writer.shares)
    if count < (2 if here else 1):
        return [writer.write(number) for number in range(count)]
    frame = spark().range(0, count, 1, count).mapInArrow(writer, "written STRING")
    return [Written.from_json(row[0]) for row in frame.collect()]


def _commit(paths: LakePaths, parts: Sequence[Part], replaced: Sequence[RemoveAction], note: Mapping[str, str]) -> None:
    now = int(time.time() * 1000)
    adds = [AddAction(part.path, part.size, {DAY: part.day}, now, True, part.stats) for part in parts]
    table = DeltaTable(paths.table(MUTATION.name))
    try:
        table.create_write_transaction(
            [*adds, *replaced],
            "append",
            table.schema(),
            [DAY],
            commit_properties=commit_properties(note),
        )
    except DeltaError as error:
        raise Transient(f"the rows of a window could not be committed: {error}", hint=AGAIN) from error
