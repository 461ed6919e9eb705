"""`binlake doctor`: examines a replication and its surroundings, mostly by what other commands check already.

All checks run at once, each within the time limit: none stops or delays the others, and none is lost.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import structlog

from binlake.common.commandline import Exit, add_output, add_replications, list_replications, parse_seconds
from binlake.common.installation import explain_missing
from binlake.common.reachability import begin_in_thread
from binlake.common.terminal import print_table
from binlake.config.load import find_replications_folder, load_replication
from binlake.errors import BinlakeError, ConfigError
from binlake.health.checks import Check, DoctorLine, ListChecks, Patient, Verdict, explain_error, list_host_checks
from binlake.health.survey import find_file, find_files
from binlake.lake.damage import translate_storage_error

log = structlog.get_logger(__name__)

GROUP = "binlake.checks"
Report = list[tuple[str, DoctorLine]]
"""(subject, finding), in the order of the checks."""
_FEEDER = Path("feeder.toml")
_VERDICTS: tuple[Verdict, ...] = ("failure", "warning", "ok", "not applicable")
_HOST = "host"
Reports = list[tuple[str, Report]]
"""(replication, or `host`; its report)."""


class DoctorCommand:
    """Examine replications and what they need."""

    help = "check everything that replications need, from versions to clocks and disks, each with its remedy"
    examples = ("binlake doctor", "binlake doctor orders --feeder /etc/binlake/feeder.toml --output json")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication, and what its file does not say."""
        add_replications(parser)
        parser.add_argument(
            "--feeder",
            type=Path,
            metavar="FILE",
            help="feeder.toml of the feeder, to check its servers too (default: ./feeder.toml, if it exists)",
        )
        parser.add_argument("--remote", default="", metavar="URL", help="the Spark Connect server, sc://host:port")
        parser.add_argument(
            "--timeout",
            type=parse_seconds,
            default=15.0,
            metavar="SECONDS",
            help="seconds that each check may take (default %(default)g)",
        )
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """0 all is well or does not apply; 4 only warnings; 5 a failure."""
        reports = [(_HOST, examine(list_host_checks(), args.timeout)), *_examine_all(args)]
        if args.output == "json":
            print(json.dumps([_to_dict(name, *row) for name, report in reports for row in report]))
        else:
            _show(reports)
        verdicts = {finding.verdict for _, report in reports for _, finding in report}
        return Exit.STOPPED if "failure" in verdicts else Exit.ATTENTION if "warning" in verdicts else Exit.DONE


def _examine_all(args: argparse.Namespace) -> Reports:
    names = list_replications(args)
    files = [find_file(name) for name in names] if names else [path for found in find_files([]) for path in found]
    if not files:
        remedy = "copy sample.toml.example to NAME.toml there, or set BINLAKE_REPLICATIONS"
        return [(_HOST, [("config", DoctorLine("files", "failure", f"none in {find_replications_folder()}", remedy))])]
    return [_examine_file(path, args) for path in sorted(files)]


def _examine_file(path: Path, args: argparse.Namespace) -> tuple[str, Report]:
    try:
        replication = load_replication(path, secrets=False)
    except ConfigError as error:
        return path.stem, [("config", explain_error("file", error, f"binlake config check {path}"))]
    feeder = args.feeder or (_FEEDER if _FEEDER.exists() else None)
    patient = Patient(path, replication, feeder, args.remote)
    return replication.name, examine(collect_checks(patient), args.timeout)


def _to_dict(name: str, subject: str, finding: DoctorLine) -> dict[str, str]:
    return {
        "replication": "" if name == _HOST else name, "subject": subject, "check": finding.check,
        "verdict": finding.verdict, "found": finding.found, "remedy": finding.remedy,
    }  # fmt: skip


def _show(reports: Sequence[tuple[str, Report]]) -> None:
    for name, report in reports:
        print(f"{name}:")
        rows = [(subject, one.check, one.verdict, one.found, one.remedy) for subject, one in report]
        print_table(("SUBJECT", "CHECK", "RESULT", "FOUND", "REMEDY"), rows)
    counts = Counter(finding.verdict for _, report in reports for _, finding in report)
    print(", ".join(_count(counts[verdict], verdict) for verdict in _VERDICTS if counts[verdict]))


def _count(number: int, verdict: Verdict) -> str:
    plural = "s" if number > 1 and verdict in ("failure", "warning") else ""
    return f"{number} {verdict}{plural}"


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
