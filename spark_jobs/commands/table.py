"""`binlake table`: set a table aside that cannot be applied, so that it does not stop the others; without Spark.

`aside` is written while no process applies, between two windows or inside an open one (U-16), and takes effect with the
next finalize, which skips the pinned statements for these tables. `back` compares and repairs the table, then applies
its changes again.
"""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from binlake.common.commandline import Exit, add_output
from binlake.config import Replication, load_replication
from binlake.config.servers import TargetSection
from binlake.ddl.targets import Naming
from binlake.errors import CheckpointConflict, ConfigError
from binlake.lake.paths import LakePaths
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.lake.targetevents import record_set_aside, record_table_return
from binlake.lake.windowlog import WindowLog
from binlake.repair.lakeside import Name, read_cluster_id
from binlake.repair.tableback import bring_table_back
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules
from binlake.spark_jobs.commands.verify import repair_lineage
from binlake.spark_jobs.job.results import StageResult, add_job, add_wait, run_and_report, show_results
from binlake.target.apply.position import read_checkpoint_ts, read_tables_aside
from binlake.target.claim.checkpoint import AsideTable, Checkpoint, CheckpointTable, is_settled, read_aside, write_aside
from binlake.target.claim.claim import open_claimed_transaction
from binlake.target.claim.progress import TargetProgress, read_progress, require_owner, write_progress
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import create_tables


class TableCommand:
    """List the tables that are set aside, set tables aside, bring a table back."""

    examples = (
        "binlake table list --replication orders.toml",
        "binlake table aside --table shop.item --reason 'a column is too narrow' --replication orders.toml",
        "binlake table back --table shop.item --replication orders.toml",
    )
    help = "set aside a table that cannot be applied, so that the others continue; list such tables; bring one back"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The three actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        list_ = actions.add_parser("list", help="list the tables that are set aside, since when and why")
        aside = actions.add_parser(
            "aside", help="stop applying a table's changes, also those of the open window; the others continue"
        )
        back = actions.add_parser("back", help="compare and repair a table, then apply its changes again")
        for each in (list_, aside, back):
            add_job(each)
            add_output(each)
        help_ = "its name at the target"
        aside.add_argument("--table", action="append", required=True, metavar="DB.TABLE", help=f"{help_} (repeatable)")
        aside.add_argument("--reason", default="", help="reason, shown in the list")
        back.add_argument("--table", required=True, metavar="DB.TABLE", help=help_)
        add_wait(back)
        back.add_argument(
            "--recreate",
            action="store_true",
            help="create the table if the target lacks it: its definition and rows are the lake's",
        )
        back.add_argument(
            "--rows-are-there",
            action="store_true",
            help="for a table whose rows the lake knows only in part: confirm that the rows without later changes are"
            " right",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run the action and print its result. `list` returns 3 if no table is set aside."""
        replication = load_replication(args.replication)
        if args.action == "list":
            tables = read_tables_aside(replication, read_cluster_id(WindowLog(LakePaths.of(replication))))
            print(json.dumps([table.to_dict() for table in tables])) if args.output == "json" else _show(tables)
            return Exit.DONE if tables else Exit.NOT_FOUND
        act = {"aside": lambda: put_aside(replication, args), "back": lambda: [_bring_back(replication, args)]}[
            args.action
        ]
        show_results(args, run_and_report(args, act))
        return 0


def put_aside(replication: Replication, args: argparse.Namespace) -> list[StageResult]:
    """Set the tables of `args` aside; returns a result for each."""
    windows, target = WindowLog(LakePaths.of(replication)), replication.require_sql_target()
    cluster_id, landed = read_cluster_id(windows), windows.find_landed_range()
    start = landed[0] if landed is not None else 0
    names = _resolve_names(
        replication, args.table, start, read_checkpoint_ts(replication, cluster_id), windows.find_landed_ts() or start
    )
    reason = args.reason or "commanded"
    tables = set_aside(target, cluster_id, replication.name, names, reason, start)
    record_set_aside(windows, 0, [table.to_dict() for table in tables], args.run_id or f"aside-{uuid.uuid4().hex[:12]}")
    return [
        StageResult(
            "aside",
            "set-aside",
            table.since,
            table.since,
            detail={**table.to_dict(), "reason": f"{table.db}.{table.table}: {table.reason}"},
        )
        for table in tables
    ]


def _resolve_names(replication: Replication, tables: Sequence[str], *moments: int | None) -> list[Name]:
    """The names as the definitions at one of `moments` spell them. Raises ConfigError for a name in none of them."""
    paths, naming = LakePaths.of(replication), Naming(Rules.of(replication))
    known = [read_target_tables_at(paths, naming, ts) for ts in moments if ts is not None]
    names: list[Name] = []
    for text in tables:
        db, _, name = text.partition(".")
        definition = next((there for one in known if (there := one.find(db, name)) is not None), None)
        if definition is None:
            raise ConfigError(f"the replication has no table {text}", hint="use the name at the target: db.table")
        names.append((definition.db, definition.name))
    return names


def _bring_back(replication: Replication, args: argparse.Namespace) -> StageResult:
    db, _, name = args.table.partition(".")
    if args.recreate and args.rows_are_there:
        raise ConfigError(
            "a table that is created again has no rows: --recreate and --rows-are-there exclude each other"
        )
    ways = {"rows_are_there": args.rows_are_there, "recreate": args.recreate}
    table, done = bring_table_back(replication, (db, name), **ways, wait_s=args.wait)
    detail = {"table": f"{table.db}.{table.table}", "keys": done.keys, "different": done.different}
    detail |= ways
    run_id = args.run_id or f"back-{uuid.uuid4().hex[:12]}"
    record_table_return(WindowLog(LakePaths.of(replication)), table.since, done.commit_ts, done.rows, run_id, detail)
    result = StageResult("aside", "back", table.since, done.commit_ts, done.rows, detail=detail)
    return replace(result, detail=detail | repair_lineage(done))


def _show(tables: Sequence[AsideTable]) -> None:
    if not tables:
        print("no table is set aside")
        return
    for table in tables:
        print(f"{table.db}.{table.table}  since {table.since}, by {table.by} at {table.at} UTC: {table.reason}")


def set_aside(
    target: TargetSection, cluster_id: int, replication: str, names: Sequence[Name], reason: str, start: int
) -> list[AsideTable]:
    """Set `names` aside from the checkpoint on (`start` if there is none yet). Returns the rows as stored.

    Raises LeaseHeld while another process applies. Raises CheckpointConflict if the checkpoint row belongs to another
    replication, or if it matches no state of the source and no Binlake window is open.
    """
    schema = target.checkpoint_schema
    with closing(TargetSession(target)) as session:
        create_tables(session, schema)
        with open_claimed_transaction(session, target, [replication]):
            table = CheckpointTable(schema, cluster_id)
            checkpoint = table.read(session, lock=True)
            require_owner(session, schema, cluster_id, replication)
            if checkpoint is not None:
                _require_state(session, schema, cluster_id, replication, checkpoint)
            since = start if checkpoint is None else checkpoint.commit_ts
            new = [AsideTable(db, name, since, "command", reason) for db, name in names]
            write_aside(session, schema, cluster_id, replication, new)
            if checkpoint is not None:
                table.write(session, checkpoint.with_consistent(consistent=False))
        aside = read_aside(session, schema, cluster_id)
    return [aside[fold_pair(name)] for name in names]


def _require_state(
    session: TargetSession, schema: str, cluster_id: int, replication: str, checkpoint: Checkpoint
) -> None:
    """Require a known reason if `consistent` is false, so that it later becomes true only when it really is."""
    progress = read_progress(session, schema, replication)
    if progress is None and checkpoint.consistent:
        # A consistent checkpoint of another writer: no row above it was written.
        write_progress(session, schema, TargetProgress(replication, cluster_id, None, None, None, checkpoint.commit_ts))
    if progress is not None and progress.is_open:
        return
    if not is_settled(checkpoint, progress, read_aside(session, schema, cluster_id)):
        raise CheckpointConflict(
            "the target matches no state of the source: a rollback wrote to it, or another writer was interrupted",
            where={"commit_ts": checkpoint.commit_ts, "task": replication},
            hint="let the next window finish first; if only this table blocks it, set target.on-table-error to"
            " set-aside for that window",
        )
