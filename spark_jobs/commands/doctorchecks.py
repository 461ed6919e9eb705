"""Spark's and preflight's checks for `binlake doctor`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial

from binlake.base.installation import find_version, list_delta_jars
from binlake.base.reachability import require_spark
from binlake.health.checks import Check, DoctorLine, Patient, explain_error, judge
from binlake.spark_jobs.commands.preflight import build_feed_reports, build_reports_of

_OLDEST_JAVA = 17
"""Spark 4 needs it."""


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
