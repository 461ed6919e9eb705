"""`binlake doctor`: examines a replication and its surroundings; every check runs, each within a time limit."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from binlake.base.commandline import Exit, add_output, add_replications, list_replications, parse_seconds
from binlake.base.terminal import print_table
from binlake.config.load import find_replications_folder, load_replication
from binlake.errors import ConfigError
from binlake.health.doctor.examining import Report, collect_checks, examine
from binlake.health.doctor.hostchecks import list_host_checks
from binlake.health.doctor.model import DoctorLine, Patient, Verdict, explain_error
from binlake.health.survey import find_file, find_files

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
