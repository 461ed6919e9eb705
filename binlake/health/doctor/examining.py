"""Runs checks at once, each within the time limit: none stops or delays the others, and none is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from importlib.metadata import EntryPoint, entry_points

import structlog

from binlake.base.installation import explain_missing
from binlake.base.reachability import begin_in_thread
from binlake.errors import BinlakeError
from binlake.health.doctor.model import Check, DoctorLine, ListChecks, Patient, explain_error
from binlake.lake.damage import translate_storage_error

log = structlog.get_logger(__name__)

GROUP = "binlake.checks"
Report = list[tuple[str, DoctorLine]]
"""(subject, finding), in the order of the checks."""


def collect_checks(patient: Patient) -> list[Check]:
    """The checks of all rooms and shells that are installed; of one that is not, a check that says so."""
    checks: list[Check] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            list_checks: ListChecks = point.load()
        except ModuleNotFoundError as error:
            checks.append(_build_missing_check(point, error))
        else:
            checks += list_checks(patient)
    return checks


def examine(checks: Sequence[Check], timeout_s: float) -> Report:
    """What the checks find. Each begins now and has `timeout_s`."""
    until = time.monotonic() + timeout_s
    running = [(check, begin_in_thread(_gather(check), f"doctor-{check.name}")) for check in checks]
    return _fold_repeated(
        (check.subject, finding)
        for check, future in running
        for finding in _await_findings(check, future, until, timeout_s)
    )


def _fold_repeated(report: Iterable[tuple[str, DoctorLine]]) -> Report:
    """Of failures with one cause, such as a PD that does not answer, only the first counts."""
    folded: Report = []
    first: dict[str, str] = {}
    for subject, finding in report:
        own = f"{subject}, {finding.check}"
        cause = first.setdefault(finding.found, own) if finding.verdict == "failure" else own
        not_known = DoctorLine(finding.check, "not applicable", f"not known while this fails: {cause}")
        folded.append((subject, finding if cause == own else not_known))
    return folded


def _gather(check: Check) -> Callable[[], list[DoctorLine]]:
    # A generator does its work while it is read: here, in the check's own thread.
    return lambda: list(check.run())


def _build_missing_check(point: EntryPoint, error: ModuleNotFoundError) -> Check:
    missing = explain_missing(error, "doctor", tuple(point.extras))
    if missing is None:
        raise error
    finding = DoctorLine(point.name, "not applicable", missing.message, missing.hint)
    return Check("versions", point.name, lambda: [finding])


def _await_findings(check: Check, future: Future[list[DoctorLine]], until: float, timeout_s: float) -> list[DoctorLine]:
    try:
        return future.result(max(until - time.monotonic(), 0.0))
    except FutureTimeout:
        return [
            DoctorLine(check.name, "failure", f"no answer within {timeout_s:g} s", "a larger --timeout shows its error")
        ]
    except BinlakeError as error:
        return [explain_error(check.name, error)]
    except Exception as error:
        known = explain_missing(error, "doctor") or translate_storage_error(error)
        if known is not None:
            return [explain_error(check.name, known)]
        log.exception("check_failed", check=check.name, subject=check.subject)
        return [
            DoctorLine(
                check.name, "failure", f"the check itself failed: {type(error).__name__}", "report the traceback"
            )
        ]
