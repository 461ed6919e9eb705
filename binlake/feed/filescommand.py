"""`binlake files`: lists a folder of binlog files, and verifies it, also against the lake.

Rule: a comparison with the lake counts the row changes of each commit. It reads the lake's `mutation` directly, not
records of encode or publish. Landed windows are compared one by one, so memory does not grow with the folder.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from binlake import tso
from binlake.binlogfile.checking import FileReport, FolderReport, list_files, verify_files
from binlake.binlogfile.folder import read_index
from binlake.binlogfile.reading import BinlogTransaction, Item
from binlake.common.commandline import add_output, read_moment
from binlake.common.filestore import StoreAddress, StoredFiles, open_store
from binlake.common.lakecolumns import Mutation
from binlake.common.terminal import print_table
from binlake.config import load_replication
from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.config.sinkuri import BINLOG_FILES, parse_store_address
from binlake.errors import ConfigError
from binlake.lake.mutations import read_rows
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION
from binlake.lake.windowlog import WindowLog

_SHOWN = 5
"""The maximum number of commits per window that are named."""
Bounds = tuple[int, int]


class LakeComparison:
    """Counts the files' row changes per window of the lake. `problems`: the differences from the lake."""

    def __init__(self, paths: LakePaths, feed: FeedSection, held: Bounds) -> None:
        """`held`: the range (lo, hi] that the files have completely. Windows completely inside it are compared."""
        self._paths, self._feed = paths, feed
        lo, hi = held
        landed = WindowLog(paths).list_landed((lo, hi)) if lo < hi else []
        self._windows: Iterator[Bounds] = iter([window for window in landed if lo <= window[0] and window[1] <= hi])
        self._window = next(self._windows, None)
        self._rows: Counter[int] = Counter()
        self.problems: list[str] = []
        self.compared = 0

    def see(self, item: Item) -> None:
        """Count the next item of the files."""
        while self._window is not None and item.commit_ts > self._window[1]:
            self._close(self._window)
        if self._window is not None and item.commit_ts > self._window[0] and isinstance(item, BinlogTransaction):
            self._rows[item.commit_ts] += len(item.message.dml_data.events)

    def finish(self) -> None:
        """Compare the remaining windows after the last item."""
        while self._window is not None:
            self._close(self._window)

    def _close(self, window: Bounds) -> None:
        in_lake = self._count_in_lake(window)
        others = sorted(ts for ts in {*in_lake, *self._rows} if in_lake[ts] != self._rows[ts])
        if others:
            differences = ", ".join(
                f"{ts}: {self._rows[ts]} in the files, {in_lake[ts]} in the lake" for ts in others[:_SHOWN]
            )
            more = f" and {len(others) - _SHOWN} commits more" if len(others) > _SHOWN else ""
            self.problems.append(f"row changes of the window {window[0]}-{window[1]}: {differences}{more}")
        self.compared += 1
        self._rows, self._window = Counter(), next(self._windows, None)

    def _count_in_lake(self, window: Bounds) -> Counter[int]:
        names = (Mutation.COMMIT_TS, Mutation.DB, Mutation.TABLE)
        rows = read_rows(self._paths, MUTATION, *window, names)
        counted = rows.group_by(list(names)).aggregate([([], "count_all")])
        counts: Counter[int] = Counter()
        for ts, db, table, count in zip(
            *(counted.column(name).to_pylist() for name in (*names, "count_all")), strict=True
        ):
            if self._feed.tables.matches(db, table):
                counts[ts] += count
        return counts


class FilesCommand:
    """List and verify binlog files."""

    examples = (
        "binlake files list --feed backup --replication orders.toml",
        "binlake files verify --feed backup --replication orders.toml",
    )
    help = "list and verify binlog files (of a feed with protocol pb, or of TiDB's drainer)"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `list` and `verify`, each for a FOLDER, a URI or a replication's feed."""
        actions = parser.add_subparsers(dest="action", required=True)
        show = actions.add_parser("list", help="show the files and the range of commit_ts of each")
        show.add_argument("--at", type=read_moment, metavar="TS", help="only the file with this commit_ts (or time)")
        verify = actions.add_parser(
            "verify", help="read every byte and check checksums, order and gaps; with --feed also compare with the lake"
        )
        for command in (show, verify):
            command.add_argument(
                "place", nargs="?", metavar="FOLDER|URI", help="such as /backup or s3://bucket/prefix?region=..."
            )
            command.add_argument("--replication", type=Path, metavar="FILE", help="the replication's TOML, for --feed")
            command.add_argument(
                "--feed", metavar="NAME", help="use the folder of this feed; verify compares it with the lake"
            )
            add_output(command)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 1 if verify found problems, else 0. Raises ConfigError, Permanent, Transient."""
        replication, feed = _load_feed(args)
        store = open_store(parse_store_address(args.place) if feed is None else _require_storage(feed))
        if args.action == "list":
            report = _select_file_at(list_files(store), args.at)
        else:
            report = verify_files(store) if feed is None else _verify_with_lake(store, replication, feed)
        _show(report, args.output, verified=args.action == "verify")
        return 0 if args.action == "list" or report.is_intact else 1


def _load_feed(args: argparse.Namespace) -> tuple[Replication, FeedSection] | tuple[None, None]:
    named = args.replication is not None and args.feed is not None
    if named == (args.place is not None) or (args.replication is None) != (args.feed is None):
        raise ConfigError("no files are given", hint="give a folder or URI, or --replication FILE and --feed NAME")
    if not named:
        return None, None
    replication = load_replication(args.replication)
    return replication, replication.require_feed(args.feed)


def _require_storage(feed: FeedSection) -> StoreAddress:
    if feed.sink.storage is None or feed.sink.protocol != BINLOG_FILES:
        raise ConfigError("the feed writes no binlog files", where={"feed": feed.name}, hint="its protocol is not pb")
    return feed.sink.storage


def _verify_with_lake(store: StoredFiles, replication: Replication | None, feed: FeedSection) -> FolderReport:
    index = read_index(store)
    if replication is None or index is None:
        raise ConfigError(
            "the folder has no index", where={"folder": store.shown}, hint="the feed has written nothing yet"
        )
    comparison = LakeComparison(LakePaths.of(replication), feed, (index.lo, index.hi))
    report = verify_files(store, comparison.see)
    comparison.finish()
    report.problems += comparison.problems
    return report


def _select_file_at(report: FolderReport, ts: int | None) -> FolderReport:
    if ts is None:
        return report
    begun = [file for file in report.files if file.first is not None and file.first <= ts]
    matching = [file for file in begun[-1:] if file.last is None or ts <= file.last]
    return FolderReport(report.index, matching, report.problems)


def _show(report: FolderReport, output: str, *, verified: bool) -> None:
    if output == "json":
        print(json.dumps(_as_json(report), ensure_ascii=False))
        return
    columns = ["file", "first commit_ts", "first (UTC)", "last commit_ts", "records", "bytes"]
    print_table([*columns, "found"] if verified else columns, [_format_row(file, verified) for file in report.files])
    if report.index is not None:
        print(f"feed {report.index.feed}: the range ({report.index.lo}, {report.index.hi}] is complete")
    for problem in report.problems:
        print(f"wrong: {problem}")


def _format_row(file: FileReport, verified: bool) -> list[str]:
    time = "" if file.first is None else tso.to_datetime(file.first).isoformat(" ", "seconds")
    cells = [
        file.name,
        _format_number(file.first),
        time,
        _format_number(file.last),
        _format_number(file.records),
        _format_number(file.size),
    ]
    return [*cells, "; ".join(file.problems) or "whole"] if verified else cells


def _format_number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _as_json(report: FolderReport) -> dict[str, object]:
    files = [{**vars(file), "first": _format_ts(file.first), "last": _format_ts(file.last)} for file in report.files]
    index = report.index
    held = None if index is None else {"feed": index.feed, "lo": str(index.lo), "hi": str(index.hi)}
    return {"held": held, "files": files, "problems": report.problems, "whole": report.is_intact}


def _format_ts(value: int | None) -> str | None:
    """A timestamp as text, as in all JSON (DESIGN 3.12)."""
    return None if value is None else str(value)
