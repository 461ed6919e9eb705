"""All checks of a feeder's sources and its tracker, and their output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any

import pymysql

from binlake.common.sql import Dialect
from binlake.common.terminal import print_table
from binlake.errors import BinlakeError
from binlake.mysqlbinlog.definitions.descriptions import SCRATCH_PREFIX
from binlake.pump_service.feeder.checks.servers import CheckFinding, ServerFacts, check_address, judge, read_facts
from binlake.pump_service.feeder.checks.tables import TableFacts, check_tables, check_together, read_table_facts
from binlake.pump_service.feeder.server import Address, Link, ask, connect, format_address
from binlake.pump_service.feeder.settings import FeederFile, SourceFile, TrackerSection

_Subject = tuple[str, str]
"""Source (or "tracker", or "all"), server."""
Report = list[tuple[_Subject, CheckFinding]]


def run_checks(settings: FeederFile) -> Report:
    """Run every check; a server that cannot be queried is a finding."""
    report: Report = []
    facts: dict[str, ServerFacts] = {}
    tables: dict[str, TableFacts] = {}
    for source in settings.source:
        for address in source.servers:
            findings, server = check_address(source, address, settings.choose_server_id(source))
            report += [((source.name, format_address(address)), finding) for finding in findings]
            if server is not None and source.name not in facts:
                facts[source.name] = server
                findings = list(_check_source_tables(source, address, tables, settings.target_families))
                report += [((source.name, format_address(address)), finding) for finding in findings]
    report += [(("all", ""), finding) for finding in check_together(tables, settings.source)]
    for tracker in dict.fromkeys(map(settings.choose_tracker, settings.source)):
        names = {source.name for source in settings.source if settings.choose_tracker(source) == tracker}
        of_these = {name: server for name, server in facts.items() if name in names}
        known = {name: table_facts for name, table_facts in tables.items() if name in names}
        subject = ("tracker", format_address((tracker.host, tracker.port)))
        report += [(subject, finding) for finding in _check_tracker(tracker, of_these, known)]
    return report


def has_failures(report: Report) -> bool:
    """Whether any check failed: the feeder would stop, or lose or mix up rows."""
    return any(finding.verdict == "fail" for _, finding in report)


def report_values(report: Report) -> list[dict[str, Any]]:
    """The report as values for JSON."""
    return [{"source": source, "server": server, **asdict(finding)} for (source, server), finding in report]


def print_report(report: Report) -> None:
    """Print one table, the worst findings of each source first."""
    rank = {"fail": 0, "warn": 1, "ok": 2}
    order: dict[_Subject, int] = {}
    for subject, _ in report:
        order.setdefault(subject, len(order))
    rows = sorted(report, key=lambda row: (order[row[0]], rank[row[1].verdict]))
    print_table(
        ("SOURCE", "SERVER", "CHECK", "RESULT", "FOUND", "REMEDY"),
        [(*subject, finding.check, finding.verdict, finding.found, finding.remedy) for subject, finding in rows],
        whole=("FOUND", "REMEDY"),
    )


def _check_source_tables(
    source: SourceFile, address: Address, tables: dict[str, TableFacts], families: Sequence[Dialect]
) -> Iterator[CheckFinding]:
    try:
        with closing(connect(source, address)) as link:
            facts = tables[source.name] = read_table_facts(link, source)
    except (BinlakeError, pymysql.err.Error) as error:
        yield CheckFinding("tables", "fail", str(error), "SELECT on the replicated databases for the source's user")
    else:
        snapshot = source.start.mode == "snapshot"
        yield from check_tables(facts, with_snapshot=snapshot, families=families, loads=source.snapshot.loads)


def _check_tracker(
    server: TrackerSection, facts: dict[str, ServerFacts], tables: dict[str, TableFacts]
) -> Iterator[CheckFinding]:
    try:
        with closing(connect(server)) as link:
            tracker = read_facts(link, is_first=True)
            case = int(ask(link, "SELECT @@lower_case_table_names")[0][0])
            yield from _check_create_privilege(link)
    except (BinlakeError, pymysql.err.Error) as error:
        yield CheckFinding("connection", "fail", str(error), "the tracker in feeder.toml")
        return
    for name, source in facts.items():
        found = f"{tracker.flavor.value} {tracker.version}; {name} is {source.flavor.value} {source.version}"
        if tracker.flavor is not source.flavor:
            yield CheckFinding(
                "family", "fail", found, f"a tracker of {name}'s family: [source.tracker] in feeder.toml"
            )
        else:
            is_same = tracker.version.split(".")[:2] == source.version.split(".")[:2]
            yield judge("version", is_same, found, "a tracker of the source's version accepts every statement", "warn")
    for name, known in tables.items():
        found = f"lower_case_table_names is {case}, at {name} {known.case}"
        yield judge("case of names", case == known.case, found, "the same setting as the source's", "warn")


def _check_create_privilege(link: Link) -> Iterator[CheckFinding]:
    scratch = f"{SCRATCH_PREFIX}check"
    try:
        ask(link, f"CREATE DATABASE IF NOT EXISTS `{scratch}`")
        ask(link, f"CREATE TABLE IF NOT EXISTS `{scratch}`.t (id INT)")
    except pymysql.err.Error as error:
        remedy = f"GRANT ALL ON `{SCRATCH_PREFIX.replace('_', chr(92) + '_')}%`.* TO the tracker's user"
        yield CheckFinding("privileges", "fail", str(error.args[-1]), remedy)
    else:
        yield CheckFinding("privileges", "ok", "may create databases")
    finally:
        with suppress(pymysql.err.Error):  # it was not created, or the finding above says why
            ask(link, f"DROP DATABASE IF EXISTS `{scratch}`")
