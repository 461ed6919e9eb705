"""`binlake verify` and `binlake repair`: check the target at its checkpoint, and correct it; without Spark.

Exit status of verify: 0 equal (or made equal by --fix), 4 different, 3 equal as far as the lake knows the tables, 1 an
error, which says whether to retry.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from deltalake.exceptions import DeltaError

from binlake.common.commandline import add_output
from binlake.common.redaction import are_row_values_shown
from binlake.common.terminal import Tell, show_progress, tell_nobody
from binlake.config import Replication, load_replication
from binlake.errors import BinlakeError
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.repair.differences import FixFile, build_fix_batches
from binlake.repair.lakeside import VerifiedTable, list_tables_at
from binlake.repair.rangerepair import hold_target
from binlake.repair.repairing import Repaired, apply_file, build_settled_target, group_keys_by_table, repair_keys
from binlake.repair.verify import Verification, VerifyOptions, verify
from binlake.spark_jobs.job.lineage import describe_table
from binlake.spark_jobs.job.results import DIFFERENT, PARTIAL, StageResult, add_job, run_and_report, show_results
from binlake.statements import BatchLimits
from binlake.target.session.session import TargetSession
from binlake.window.lineage import KnownTable, LineageTable, build_lineage

log = structlog.get_logger(__name__)

UNRECORDED = "unrecorded"
"""In the detail of a result whose event could not be written to the lake."""
_SHOWN = 20
_SUMS = ("chunks", "compared", "missing", "extra", "different", "unlisted")


class VerifyCommand:
    """Compare the target with the lake or the source."""

    examples = (
        "binlake verify --replication orders.toml",
        "binlake verify --sample 0.1 --fix --replication orders.toml",
    )
    help = "compare the target with the lake, or the source, at its checkpoint; optionally repair it"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """What to compare, how much of it, what to do with differences."""
        add_job(parser)
        add_output(parser)
        parser.add_argument(
            "--against",
            choices=("lake", "source"),
            default="lake",
            help="what the target must equal (default: lake)",
        )
        parser.add_argument(
            "--table", action="append", default=[], metavar="DB.TABLE", help="compare only this table (repeatable)"
        )
        parser.add_argument(
            "--sample", type=float, default=1.0, help="share of the chunks to compare; the next run takes others"
        )
        parser.add_argument("--chunk-rows", type=int, default=20_000, help="rows of a chunk")
        parser.add_argument(
            "--rows-per-second", type=int, default=0, help="rows of the target to read per second at most; 0 = no limit"
        )
        parser.add_argument(
            "--max-differences", type=int, default=10_000, help="differing rows to list, and to write to the fix file"
        )
        parser.add_argument(
            "--wait",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="seconds to wait for a consistent checkpoint; with --fix also for the lease",
        )
        parser.add_argument("--fresh", action="store_true", help="compare again what an unfinished run found equal")
        parser.add_argument(
            "--source-stands-still", action="store_true", help="state that nothing writes to the source meanwhile"
        )
        parser.add_argument(
            "--fix-file", type=Path, metavar="FILE", help="write SQL that removes the differences to this file"
        )
        parser.add_argument("--fix", action="store_true", help="remove the differences now, under the target's lease")

    def run(self, args: argparse.Namespace) -> int:
        """Verify, and with --fix repair."""
        replication = load_replication(args.replication)
        options = VerifyOptions(
            args.against, tuple(args.table), args.chunk_rows, args.sample, args.rows_per_second, args.max_differences,
            args.wait, args.fresh, args.source_stands_still,
        )  # fmt: skip
        lines: list[str] = []
        with show_progress("verify") as tell:
            results = run_and_report(
                args, lambda: run_verify(replication, options, args.run_id, args.fix_file, args.fix, lines, tell)
            )
        show_results(args, results, lines)
        if results[-1].stage == "repair" and _is_all_listed(results[0]):
            return 0
        return {"equal": 0, "partial": PARTIAL, "different": DIFFERENT}[results[0].state]


class RepairCommand:
    """Run a fix file."""

    examples = ("binlake repair --from-file fixes.json --replication orders.toml",)
    help = "run the fixes that verify wrote, if the target is still at the checkpoint they were made for"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The file."""
        add_job(parser)
        add_output(parser)
        parser.add_argument(
            "--from-file", type=Path, required=True, metavar="FILE", help="a file that `verify --fix-file` wrote"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run it, once."""
        replication = load_replication(args.replication)
        results = run_and_report(args, lambda: [_from_file(replication, args.from_file, args.run_id)])
        show_results(args, results)
        return 0


def run_verify(
    replication: Replication,
    options: VerifyOptions,
    run_id: str,
    fix_file: Path | None,
    fix: bool,
    lines: list[str],
    tell: Tell = tell_nobody,
) -> list[StageResult]:
    """The result of verify and, if `fix` is set and rows differ, of the repair. Adds the text output to `lines`."""
    run_id = run_id or f"verify-{uuid.uuid4().hex[:12]}"
    verification = verify(replication, options, tell=tell)
    result = _build_result(verification)
    # A task's output goes to a log, so row values are left out there.
    clear = are_row_values_shown() or sys.stdout.isatty()
    listed = verification.differences[:_SHOWN]
    lines += [str(difference) if clear else difference.format_without_values() for difference in listed]
    lines += _describe_rest(verification)
    lines += [text for table in verification.tables for text in table.structure]
    inexact = [table for table in verification.tables if table.inexact]
    lines += [f"{table.db}.{table.table}: not compared: {table.inexact}" for table in inexact]
    result = record_result(replication, result, run_id)
    result = replace(
        result, detail={**result.detail, **build_lineage(read=map(_build_lineage_table, verification.read))}
    )
    if fix_file is not None and verification.differences:
        write_fixes(replication, verification, fix_file)
        lines.append(f"fixes: {fix_file}")
    if UNRECORDED in result.detail and fix and verification.differences:
        lines.append("nothing is repaired: the lake could not record it")
        return [result]
    if not (fix and verification.differences):
        return [result]
    return [result, _run_fix(replication, verification, run_id, options.wait_s)]


def write_fixes(replication: Replication, verification: Verification, path: Path) -> FixFile:
    """Write the statements that remove the listed differences."""
    target = replication.require_sql_target()
    with closing(TargetSession(target)) as session:
        limits = BatchLimits.of(target.batch_rows, session.fetch_max_packet())
    tables = list_tables_at(replication, LakePaths.of(replication), verification.commit_ts)
    batches = build_fix_batches([table.expected for table in tables], verification.differences, target.db_type, limits)
    file = FixFile(replication.name, verification.commit_ts, tuple(batches))
    file.write(path)
    return file


def record_repair(replication: Replication, done: Repaired, run_id: str, stage: str = "repair") -> StageResult:
    """The result of a repair, recorded in the table `window`."""
    detail = {"keys": done.keys, "different": done.different, "gone": done.gone, "unknown": done.unknown}
    result = StageResult(stage, "done", done.commit_ts, done.commit_ts, done.rows, detail=detail)
    result = record_result(replication, result, run_id)
    return replace(result, detail={**result.detail, **repair_lineage(done)})


def repair_lineage(done: Repaired) -> dict[str, Any]:
    """The lineage of a repair: the tables it wrote, and all tables it compared with the lake."""
    return build_lineage(
        wrote=(describe_table(done.looked[name]) for name in sorted(done.written)),
        read=(LineageTable(KnownTable(*name)) for name in sorted(done.looked)),
    )


def record_result(replication: Replication, result: StageResult, run_id: str) -> StageResult:
    """Append the result to the table `window`; returns it, with the reason under UNRECORDED if that failed.

    What was compared or repaired is the answer: a lake that cannot be written must not cost it.
    """
    event = WindowEvent(
        result.stage, result.lo, result.hi, result.state, result.rows, result.seconds, run_id, "sql",
        detail=result.detail,
    )  # fmt: skip
    try:
        WindowLog(LakePaths.of(replication)).record(event)
    except (BinlakeError, DeltaError, OSError) as error:
        log.error("result_not_recorded", stage=result.stage, error=str(error))
        text = f"this result could not be recorded in the lake, so pages do not show it: {error}"
        return replace(result, detail={**result.detail, UNRECORDED: True, "reason": text})
    return result


def _run_fix(replication: Replication, verification: Verification, run_id: str, wait_s: float) -> StageResult:
    tables = list_tables_at(replication, LakePaths.of(replication), verification.commit_ts)
    with hold_target(replication, wait_s) as target:
        done = repair_keys(replication, group_keys_by_table(verification.differences, tables), target)
    return record_repair(replication, done, run_id)


def _from_file(replication: Replication, path: Path, run_id: str) -> StageResult:
    with build_settled_target(replication) as target:
        done = apply_file(replication, path, target)
    return record_repair(replication, done, run_id or f"repair-{uuid.uuid4().hex[:12]}")


def _build_result(verification: Verification) -> StageResult:
    sums = {name: sum(getattr(table, name) for table in verification.tables) for name in _SUMS}
    detail = {
        "against": verification.against,
        "every": verification.every,
        "turn": verification.turn,
        "tables": len(verification.tables),
        **sums,
        "unequal": [table.to_dict() for table in verification.tables if not table.equal][:_SHOWN],
        "inexact": {f"{table.db}.{table.table}": table.inexact for table in verification.tables if table.inexact},
        "differences": [difference.to_dict() for difference in verification.differences[:_SHOWN]],
        "listed": len(verification.differences),
        "listed_all": verification.listed_all,
    }
    state = "different" if not verification.equal else "equal" if verification.whole else "partial"
    ts = verification.commit_ts
    return StageResult("verify", state, ts, ts, verification.rows, verification.seconds, detail=detail)


def _build_lineage_table(table: VerifiedTable) -> LineageTable:
    return LineageTable(KnownTable(*table.name), (), [KnownTable(*name) for name in table.sources])


def _is_all_listed(result: StageResult) -> bool:
    """True when every difference was listed, and no table definition differs."""
    detail = result.detail
    structure = any(table["structure"] for table in detail["unequal"])
    return bool(detail["listed_all"]) and not detail["unlisted"] and not structure


def _describe_rest(verification: Verification) -> list[str]:
    missing, extra, different, unlisted = (
        sum(getattr(table, name) for table in verification.tables)
        for name in ("missing", "extra", "different", "unlisted")
    )
    if verification.equal:
        return []
    summary = f"{missing} rows missing, {extra} only on the target, {different} different"
    return [summary + (f"; {unlisted} rows in differing chunks were not compared one by one" if unlisted else "")]
