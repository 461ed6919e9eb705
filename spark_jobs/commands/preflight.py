"""`binlake preflight`: compares every replicated table with the target's before anything is written; reads only.

Exit status 0 if all tables can be written, 1 if a table is refused or missing, or a feed cannot run, 3 if there was no
table to compare. The definitions are the lake's at the target's checkpoint (for feeds: at the lake's end); before the
first landing they are the source's where the replication starts, or its present ones if it has no table there. For a
feed, preflight also contacts the brokers and the registry, and names those that do not answer.

The checks of Spark and of preflight for `binlake doctor` are here too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from binlake.common.commandline import Exit, add_output
from binlake.common.installation import find_version, list_delta_jars
from binlake.common.reachability import require_spark
from binlake.common.terminal import print_table
from binlake.config import load_replication
from binlake.config.model import Replication
from binlake.config.servers import TargetSection
from binlake.ddl.targets import Naming, TargetTables
from binlake.feed.checks import FeedReport, check_tables, find_connection_problems, read_landed_tables
from binlake.health.checks import Check, DoctorLine, Patient, explain_error, judge
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.lake.windowlog import WindowLog
from binlake.rows.schema import SchemaState
from binlake.rules import Rules
from binlake.target import read_checkpoint_ts
from binlake.target.apply.preflight import TableReport, build_reports, list_tables
from binlake.window.sourcecluster import Cluster, open_cluster

_NO_TABLE = (
    "nothing was compared: no table is selected by the filters, or the source has none yet. A feeder knows a server's"
    " tables once it has begun to read it (`binlake feeder status`); then run preflight again"
)
_OLDEST_JAVA = 17
"""Spark 4 needs it."""


class PreflightCommand:
    """Compare the source's tables with the target's, and with what feeds can send."""

    name = "preflight"
    examples = ("binlake preflight --replication orders.toml",)
    help = "compare the replicated tables with the target's and check the feeds; write nothing"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication's file and the output format."""
        parser.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the reports."""
        replication = load_replication(args.replication)
        target = replication.target if replication.feed else replication.require_sql_target()
        reports = build_reports_of(replication, target) if target is not None else []
        feeds = build_feed_reports(replication)
        if args.output == "json":
            tables = [report.to_dict() for report in reports]
            print(json.dumps([*tables, *(feed.to_dict() for feed in feeds)]))
        else:
            if target is not None:
                _show(reports)
            _show_feeds(feeds)
        if target is not None and not reports:
            print(_NO_TABLE, file=sys.stderr)
            return Exit.NOT_FOUND
        is_refused = any(report.verdict in ("refused", "missing") for report in reports)
        return 1 if is_refused or any(feed.refused for feed in feeds) else 0


def build_reports_of(replication: Replication, target: TargetSection) -> list[TableReport]:
    """A report for each table that the source has or will have."""
    known = _read_tables(replication)
    tables, newest = list_tables(replication, known.at_start), list_tables(replication, known.newest)
    if tables or known.is_landed:
        return build_reports(target, tables, newest)
    return [_describe_coming(report) for report in build_reports(target, newest)]


def _describe_coming(report: TableReport) -> TableReport:
    """A table that is created after the replication's start comes with a window, if the target lacks it."""
    if report.verdict != "missing":
        return report
    return replace(report, verdict="coming", refusals=(), ways=("its CREATE TABLE comes with the windows",))


def build_feed_reports(replication: Replication) -> list[FeedReport]:
    """A report for each feed before it runs: its tables, and whether its servers accept the connection."""
    if not replication.feed:
        return []
    tables = read_landed_tables(replication)
    if tables is None:
        tables = list_tables(replication.model_copy(update={"target": None}), _read_source_tables(replication))
    return [
        replace(report, refused=(*report.refused, *find_connection_problems(feed)))
        for feed in replication.feed
        for report in [check_tables(feed, tables, replication.feed)]
    ]


@dataclass(frozen=True)
class _Known:
    """The tables where the SQL sink continues, and the newest that are known; `is_landed`: from the lake."""

    at_start: TargetTables
    newest: TargetTables
    is_landed: bool


def _read_tables(replication: Replication) -> _Known:
    paths, naming = LakePaths.of(replication), Naming(Rules.of(replication))
    landed = WindowLog(paths).find_landed_range()
    if landed is None:
        start, now = _read_source_schemas(replication)
        return _Known(TargetTables(start, naming), TargetTables(now, naming), is_landed=False)
    checkpoint = read_checkpoint_ts(replication, replication.source.expected_cluster)
    ts = landed[0] if checkpoint is None else min(max(checkpoint, landed[0]), landed[1])
    at_start, newest = (read_target_tables_at(paths, naming, at) for at in (ts, landed[1]))
    return _Known(at_start, newest, is_landed=True)


def _read_source_tables(replication: Replication) -> TargetTables:
    return TargetTables(_read_source_schemas(replication)[0], Naming(Rules.of(replication)))


def _read_source_schemas(replication: Replication) -> tuple[SchemaState, SchemaState]:
    """The source's schema at the commit_ts where the replication will start, and its present one."""
    with open_cluster(replication) as cluster:
        initial, now = int(replication.initial_commit_ts), cluster.pd.fetch_ts()
        start = read_checkpoint_ts(replication, cluster.cluster_id) or (initial if initial >= 0 else now)
        return _read_source_schema(cluster, start), _read_source_schema(cluster, max(start, now))


def _read_source_schema(cluster: Cluster, ts: int) -> SchemaState:
    with tempfile.TemporaryDirectory(prefix="binlake-preflight-") as folder:
        return SchemaHistory(LakePaths(folder)).bootstrap(ts, cluster.source.fetch_ddl_jobs(0))


def _show_feeds(feeds: Sequence[FeedReport]) -> None:
    for report in feeds:
        lines = [*(f"refused: {error}" for error in report.refused), *(f"warning: {text}" for text in report.warnings)]
        print("\n  ".join([f"feed {report.feed}: {len(report.topics)} tables", *lines]))


def _show(reports: list[TableReport]) -> None:
    rows = []
    for report in reports:
        lines = [*report.differences, *(text for text in report.refusals if text not in report.differences)]
        lines += [f"kept: {', '.join(report.own)}"] if report.own else []
        lines += [f"left out: {', '.join(report.left_out)}"] if report.left_out else []
        lines += [f"-> {way}" for way in report.ways] + [f"warning: {text}" for text in report.warnings]
        if report.verdict != "alike" or report.warnings:
            rows.append([f"{report.db}.{report.table}", report.verdict, "\n".join(lines)])
    if rows:
        print_table(("table", "", "what differs, what to do"), rows)
    counts = Counter(report.verdict for report in reports)
    print(", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())) or "no table")


def list_checks(patient: Patient) -> list[Check]:
    """The checks of tables and feeds, and of Spark."""
    return [
        Check("target", "tables", partial(_check_tables, patient)),
        Check("feeds", "feeds", partial(_check_feeds, patient)),
        Check("Spark", "server", partial(_check_spark, patient)),
        Check("Spark", "Java", partial(_check_java, patient)),
    ]


def _check_tables(patient: Patient) -> Iterator[DoctorLine]:
    """As `binlake preflight`."""
    replication = patient.unlocked
    if replication.target is None:
        yield DoctorLine("tables", "not applicable", "this replication has no SQL target")
        return
    reports = build_reports_of(replication, replication.target)
    preflight = f"binlake preflight --replication {patient.file}"
    for report in reports:
        name = f"{report.db}.{report.table}"
        if report.verdict in ("refused", "missing"):
            yield DoctorLine(
                "tables", "failure", f"{name} is {report.verdict}: {'; '.join(report.refusals)}", preflight
            )
        elif report.warnings:
            yield DoctorLine("tables", "warning", f"{name}: {'; '.join(report.warnings)}", preflight)
    yield judge("tables", bool(reports), f"{len(reports)} tables compared", "binlake feeder status", "warning")


def _check_feeds(patient: Patient) -> Iterator[DoctorLine]:
    """Tables, brokers and registry, as `binlake preflight`."""
    if not patient.replication.feed:
        yield DoctorLine("feeds", "not applicable", "this replication has no feed")
        return
    for report in build_feed_reports(patient.unlocked):
        for error in report.refused:
            yield explain_error(
                report.feed, error, f"binlake changefeed query --replication {patient.file} -c {report.feed}"
            )
        for text in report.warnings:
            yield DoctorLine(report.feed, "warning", text, f"binlake preflight --replication {patient.file}")
        if not report.refused:
            yield DoctorLine(report.feed, "ok", f"{len(report.topics)} tables, its servers answer")


def _check_spark(patient: Patient) -> Iterator[DoctorLine]:
    if patient.remote:
        yield DoctorLine("server", "ok", f"listens at {require_spark(patient.remote)}")
        return
    text = f"its address is Airflow's connection {patient.replication.airflow.spark_conn_id}"
    yield DoctorLine("server", "not applicable", text, "--remote sc://host:port")


def _check_java(patient: Patient) -> Iterator[DoctorLine]:
    """Java and the Delta jars, for a Spark that begins on this machine."""
    if patient.remote or not find_version("pyspark"):
        yield DoctorLine("Java", "not applicable", "no Spark begins on this machine")
        return
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        yield DoctorLine(
            "Java", "failure", f"there is none at {java or 'PATH'}", f"install Java {_OLDEST_JAVA}, or set JAVA_HOME"
        )
    else:
        yield judge_java(java)
    yield DoctorLine("Delta", "ok", f"{len(list_delta_jars())} jars")


def judge_java(java: str) -> DoctorLine:
    """Whether the program `java` is new enough for Spark."""
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    # Before it a JVM names the options that it was given by the environment.
    found = re.search(r'^.*version "(\d+).*$', answer.stderr, re.M)
    is_new = found is not None and int(found[1]) >= _OLDEST_JAVA
    return judge(
        "Java",
        is_new,
        f"{found[0] if found else 'no version'} at {java}",
        f"install Java {_OLDEST_JAVA} or newer, or set JAVA_HOME",
    )
