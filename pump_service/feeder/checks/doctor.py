"""The feeder's checks for `binlake doctor`: those of `binlake feeder check`, its servers' clocks, its disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

from binlake.health.checks import Check, DoctorLine, Patient, Verdict, check_disk, check_skew, measure_skew_s
from binlake.pump_service.feeder.checks.report import run_checks
from binlake.pump_service.feeder.server import Link, ask, connect, format_address
from binlake.pump_service.feeder.settings import FeederFile, SourceFile, read_settings

_VERDICTS: dict[str, Verdict] = {"ok": "ok", "warn": "warning", "fail": "failure"}


def list_checks(patient: Patient) -> list[Check]:
    """The checks of the feeder whose file is named."""
    if patient.feeder is None:
        text = "no feeder.toml is named: the source's servers are not asked"
        finding = DoctorLine("feeder", "not applicable", text, "--feeder FILE, on the feeder's host")
        return [Check("feeder", "feeder", lambda: [finding])]
    return [Check("feeder", "feeder", partial(_check_servers, patient)), *_list_more(patient)]


def _list_more(patient: Patient) -> list[Check]:
    return [
        Check("feeder", "clocks", partial(_check_clocks, patient)),
        Check("disks", "feeder", lambda: [check_disk("feeder", _read(patient).data_dir, "data-dir in feeder.toml")]),
    ]


def _read(patient: Patient) -> FeederFile:
    assert patient.feeder is not None
    return read_settings(patient.feeder)


def _check_servers(patient: Patient) -> Iterator[DoctorLine]:
    """As `binlake feeder check`."""
    for (source, server), one in run_checks(_read(patient)):
        where = " ".join(word for word in (source, server) if word)
        yield DoctorLine(one.check, _VERDICTS[one.verdict], f"{where}: {one.found}", one.remedy)


def _check_clocks(patient: Patient) -> Iterator[DoctorLine]:
    for source in _read(patient).source:
        yield _check_clock(source)


def _check_clock(source: SourceFile) -> DoctorLine:
    with closing(connect(source, source.servers[0])) as link:
        return check_skew(
            "clock", measure_skew_s(partial(_read_clock, link)), f"{source.name} at {format_address(source.servers[0])}"
        )


def _read_clock(link: Link) -> float:
    return float(ask(link, "SELECT UNIX_TIMESTAMP(NOW(6))")[0][0])
