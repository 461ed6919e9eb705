"""`binlake maintain`: join small files, sort history for audits, delete what is no longer needed, while windows run.

It never removes a row of `binlog`, `mutation` or `ddl` (a feed that was stopped for months resumes from them), a
manifest, or rows of a window that its sink has not passed. Replaced files stay for their table's retention time, so
time travel and running readers still find them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
import structlog
from deltalake.transaction import RemoveAction

from binlake import tso
from binlake.common.commandline import add_output
from binlake.common.lakecolumns import History
from binlake.common.terminal import Tell, print_table, show_progress, tell_nobody
from binlake.config import load_replication
from binlake.feed.upkeep import list_feeds_in_lake, tidy_feed
from binlake.lake.continuity import require_all_windows
from binlake.lake.lock import hold_lake_lock
from binlake.lake.members import MemberTable
from binlake.lake.opentable import load_table
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import (
    BINLOG,
    CHANGE,
    DDL,
    GROUP_BYTES,
    MUTATION,
    STATEMENT,
    WORKING_DAYS,
    LakeTable,
    build_message_table,
    parse_schema,
)
from binlake.mirror import MirrorVersions
from binlake.mirror.replica import Replica
from binlake.pipeline import BY_NAME, list_stages_with_versions, look_up_lock
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.exchange import OrderedRows, cut_in_order
from binlake.spark_jobs.engine.rows import FileRows
from binlake.spark_jobs.job.context import Bounds, StageContext, build_context
from binlake.spark_jobs.job.failures import translate_errors
from binlake.spark_jobs.job.lake import commit_parts, commit_properties
from binlake.spark_jobs.job.results import add_where
from binlake.spark_jobs.shared.nextwindow import read_target_position

log = structlog.get_logger(__name__)

FILE_BYTES = 32 << 20
"""Size of the files into which a closed day is rewritten: a query for one commit_ts reads one file."""
OPEN_FILES = 256
"""If the day still being written has more files than this, its small files are joined without sorting."""
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Maintained:
    """What was done to a table: files `joined` into fewer, files `dropped`, `windows` whose rows were deleted.

    `mirrors`: for the entry that covers all mirrors, the (db, table) of each mirror that was changed.
    """

    table: str
    joined: int = 0
    dropped: int = 0
    windows: int = 0
    seconds: float = 0.0
    mirrors: tuple[tuple[str, str], ...] = ()


class MaintainCommand:
    """Run the lake's maintenance once."""

    examples = ("binlake maintain --replication orders.toml",)
    help = "join small files, sort history for audits, delete what is no longer needed"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication, and where Spark runs."""
        parser.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
        add_where(parser, master="local[*]")
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run maintenance and print what was done."""
        replication = load_replication(args.replication)
        ctx = build_context(replication, "maintain", args, "maintain")
        with translate_errors(ctx.paths.root), show_progress("maintain") as tell:
            done = maintain(ctx, tell)
        if args.output == "json":
            print(json.dumps([asdict(result) for result in done]))
            return 0
        rows = [
            [each.table, *map(str, (each.joined, each.dropped, each.windows)), f"{each.seconds:.1f}"] for each in done
        ]
        columns = ("table", "files joined", "files dropped", "windows deleted", "seconds")
        print_table(columns, rows, empty=f"the lake at {ctx.paths.root} has no tables yet")
        return 0


def maintain(ctx: StageContext, tell: Tell = tell_nobody) -> list[Maintained]:
    """Maintain all tables, one by one; `tell` gets which.

    Raises LeaseHeld if a stage holds a table for too long, TargetUnavailable.
    """
    landed = ctx.windows.find_landed_range()
    if landed is None:
        return []
    # Rewriting a table that has lost a commit would take the lost commit's version, and hide the loss.
    require_all_windows(ctx.paths, ctx.windows, list_stages_with_versions())
    steps: list[tuple[str, Callable[[], Maintained]]] = [
        ("window", lambda: _build_maintained("window", ctx.windows.tidy())),
        ("pump_member", lambda: _build_maintained("pump_member", MemberTable(ctx.paths).tidy())),
        ("schema_change", lambda: _build_maintained("schema_change", SchemaHistory(ctx.paths).tidy())),
        ("mirror_version", lambda: _build_maintained("mirror_version", MirrorVersions(ctx.paths).tidy())),
        *((table.name, partial(_maintain_working_table, ctx, table, Bounds(*landed))) for table in (CHANGE, STATEMENT)),
        *((table.name, partial(_maintain_history, ctx, table, landed[1])) for table in (BINLOG, MUTATION, DDL)),
        ("mirror", lambda: _maintain_mirrors(ctx)),
        *((build_message_table(name).name, partial(_maintain_feed, ctx, name, landed[1])) for name in _list_feeds(ctx)),
    ]
    done = []
    for number, (name, step) in enumerate(steps, 1):
        tell(f"{name}, {number} of {len(steps)} tables")
        done.append(_run_step(name, step))
    return done


def _run_step(name: str, step: Callable[[], Maintained]) -> Maintained:
    began = time.monotonic()
    result = step()
    done = replace(result, seconds=time.monotonic() - began)
    log.info("maintained", **asdict(done) | {"table": name, "mirrors": len(done.mirrors)})
    return done


def _build_maintained(table: str, counts: dict[str, int]) -> Maintained:
    return Maintained(table, counts["joined"], counts["dropped"])


# History: binlog, mutation, ddl.


def _maintain_history(ctx: StageContext, table: LakeTable, landed_ts: int) -> Maintained:
    """Rewrite the days before that of the landed ts. Each day takes the lock anew, so a window waits for one only."""
    today = tso.to_datetime(landed_ts).date()
    joined = 0
    for part in list_days(ctx.paths.locate_table(table.name)):
        closed = part.day is not None and part.day < today
        if part.files > (math.ceil(part.bytes / FILE_BYTES) + 1 if closed else OPEN_FILES):
            with hold_lake_lock(ctx.paths, look_up_lock(table.name)):
                joined += _lay_out(ctx, table, part) if closed else _join(ctx, table, part)
    return Maintained(table.name, joined, _vacuum(ctx, table))


@dataclass(frozen=True)
class DayOfFiles:
    """A partition by commit_date (None: the table has no partitions): how many files and bytes are in use."""

    day: date | None
    files: int
    bytes: int


def list_days(path: str) -> list[DayOfFiles]:
    """The partitions of the Delta table at `path`, the oldest first."""
    adds = pa.table(load_table(path).get_add_actions(flatten=True))
    dated = "partition.commit_date" in adds.column_names
    keys = adds.column("partition.commit_date").to_pylist() if dated else [None] * adds.num_rows
    sizes: dict[date | None, list[int]] = {}
    for key, size in zip(keys, adds.column("size_bytes").to_pylist(), strict=True):
        sizes.setdefault(key, []).append(size)
    return [DayOfFiles(key, len(sizes[key]), sum(sizes[key])) for key in sorted(sizes, key=str)]


def _lay_out(ctx: StageContext, table: LakeTable, part: DayOfFiles) -> int:
    return lay_out(ctx.choose_engine(part.bytes), ctx.paths, table, part)


def lay_out(engine: Engine, paths: LakePaths, table: LakeTable, part: DayOfFiles) -> int:
    """Rewrite a day: each file gets one range of commit_ts, sorted by `clustered_by`. Returns the files replaced.

    The rows stay the same, in one commit that changes no data. The caller holds the table's lock. Joining files by
    their size would mix commit_ts and keys at the granularity of files.
    """
    place = paths.locate_table(table.name)
    own = {History.COMMIT_DATE: str(part.day)}
    adds = pa.table(load_table(place).get_add_actions(flatten=True)).to_pylist()
    old = [add for add in adds if str(add[f"partition.{History.COMMIT_DATE}"]) == str(part.day)]
    rows = FileRows(tuple((f"{place}/{unquote(add['path'])}", ()) for add in old), part.bytes)
    size = sum(run.rows.bytes for run in rows.list_runs())
    ranges = cut_in_order([rows], max(1, size * FILE_BYTES // max(1, part.bytes)))
    written = engine.run(LayOutTask(table, place, str(part.day)), ranges)
    now = int(time.time() * 1000)
    replaced = [RemoveAction(add["path"], False, now, add["size_bytes"], own) for add in old]
    note = {"stage": "maintain", "commit_date": str(part.day)}
    commit_parts(paths, table, [one for some in written for one in some], replaced, note, data_change=False)
    return part.files


@dataclass(frozen=True)
class LayOutTask:
    """Writes a range of a day's rows of `table` to one file of `folder`, sorted."""

    table: LakeTable
    folder: str
    day: str

    def __call__(self, rows: OrderedRows) -> list[TablePart]:
        """Raises OSError, LostRange."""
        names = [name for name in self.table.list_column_names() if name != History.COMMIT_DATE]
        undated = pa.Table.from_batches(rows.read(names, [History.COMMIT_TS]))
        day = pa.repeat(pa.scalar(date.fromisoformat(self.day)), undated.num_rows)
        return write_clustered(self.folder, self.table, undated.append_column(History.COMMIT_DATE, day))


def write_clustered(folder: str, table: LakeTable, rows: pa.Table) -> list[TablePart]:
    """Write `rows` of one day to a file of `folder`, sorted by `clustered_by`, in row groups of GROUP_BYTES."""
    kinds = parse_schema(table.build_spark_schema())
    ordered = rows.sort_by([(name, "ascending") for name in table.clustered_by]).combine_chunks()
    ordered = ordered.select(kinds.names).cast(kinds)
    step = max(1, GROUP_BYTES * ordered.num_rows // max(1, ordered.nbytes))
    return write_parts(folder, table, (ordered.slice(first, step) for first in range(0, ordered.num_rows, step)))


def _join(ctx: StageContext, table: LakeTable, part: DayOfFiles) -> int:
    """Join the small files of a day that is still being written, or of a table without partitions."""
    own = None if part.day is None else [(History.COMMIT_DATE, "=", str(part.day))]
    about = commit_properties({"stage": "maintain"})
    metrics = load_table(ctx.paths.locate_table(table.name)).optimize.compact(own, commit_properties=about)
    return int(metrics["numFilesRemoved"])


def _vacuum(ctx: StageContext, table: LakeTable) -> int:
    """Delete files that the table has not had for longer than its retention, also those of unfinished writes."""
    with hold_lake_lock(ctx.paths, look_up_lock(table.name)):
        found = load_table(ctx.paths.locate_table(table.name)).vacuum(
            24 * table.kept_days, dry_run=False, commit_properties=commit_properties({"stage": "maintain"}), full=True
        )
    return len(found)


# Working tables: change, statement.


def _maintain_working_table(ctx: StageContext, table: LakeTable, landed: Bounds) -> Maintained:
    with hold_lake_lock(ctx.paths, look_up_lock(table.name)):
        expired = find_expired_windows(ctx, table, landed)
        for start in range(0, len(expired), 500):
            names = ", ".join(f"'{name}'" for name in expired[start : start + 500])
            place = load_table(ctx.paths.locate_table(table.name))
            place.delete(f"window IN ({names})", commit_properties=commit_properties({"stage": "maintain"}))
    return Maintained(table.name, 0, _vacuum(ctx, table), len(expired))


def find_expired_windows(ctx: StageContext, table: LakeTable, landed: Bounds) -> list[str]:
    """Windows in `table` that the SQL target has passed and that are WORKING_DAYS older than the landed ts.

    If needed they can be derived again.
    """
    if ctx.replication.target is None:
        return []
    position = read_target_position(ctx, landed)
    if position.commit_ts is None:
        return []
    opened = position.window[0] if position.window else position.commit_ts
    old = tso.compose(max(tso.extract_physical(landed.hi) - WORKING_DAYS * _DAY_MS, 0))
    end = min(position.commit_ts, opened, old)
    adds = pa.table(load_table(ctx.paths.locate_table(table.name)).get_add_actions(flatten=True))
    windows = set(adds.column("partition.window").to_pylist()) if adds.num_rows else set()
    return sorted(name for name in windows if int(name.partition("-")[2]) <= end)


# Feeds.


def _list_feeds(ctx: StageContext) -> list[str]:
    return list_feeds_in_lake(ctx.paths, [feed.name for feed in ctx.replication.feed])


def _maintain_feed(ctx: StageContext, name: str, landed_ts: int) -> Maintained:
    tidied = tidy_feed(ctx.paths, ctx.windows, name, landed_ts)
    return Maintained(build_message_table(name).name, tidied.joined, tidied.dropped, tidied.windows)


# Mirrors.


def _maintain_mirrors(ctx: StageContext) -> Maintained:
    joined = dropped = 0
    touched: list[tuple[str, str]] = []
    versions = MirrorVersions(ctx.paths)
    for (db, name), version in sorted(versions.read_latest().items()):
        with hold_lake_lock(ctx.paths, BY_NAME["mirror"].lock):
            replica = Replica(ctx.paths.locate_mirror(db, name), ctx.replication.lake.retention_days)
            counts = replica.maintain(join=not version.dropped)
            if counts["joined"] and replica.read_position() == version.hi:
                # The new version has the same state in fewer files; those of the recorded one will be deleted one day.
                versions.record([replace(version, delta_version=replica.version)])
            joined, dropped = joined + counts["joined"], dropped + counts["dropped"]
            touched += [(db, name)] if any(counts.values()) else []
    return Maintained("mirror", joined, dropped, mirrors=tuple(touched))
