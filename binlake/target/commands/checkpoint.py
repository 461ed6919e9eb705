"""`binlake checkpoint`: show a target's position, set it after restoring a dump, or adopt another writer's row."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from binlake import tso
from binlake.common.commandline import add_output
from binlake.config.load import load_replication
from binlake.config.model import Replication
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ConfigError
from binlake.mysqlbinlog.dumpfolder import read_dump_position
from binlake.target.apply.position import read_open_window, read_tables_aside
from binlake.target.claim.checkpoint import Checkpoint, CheckpointTable, StoredCheckpoint
from binlake.target.claim.claim import open_claimed_transaction
from binlake.target.claim.progress import (
    TargetProgress,
    WindowLedger,
    forget_written_progress,
    read_open_progress,
    read_progress,
    take_ownership,
    write_progress,
)
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import create_tables

_ACTIONS = {
    "show": "show the checkpoint row, the open window, and the tables that are set aside",
    "set": "write the first row, after a dump was restored into the target",
    "adopt": "believe the row as it is, and continue from it",
}


class CheckpointCommand:
    """Show the target's checkpoint, set its first one, or adopt its row."""

    name = "checkpoint"
    examples = (
        "binlake checkpoint show --replication orders.toml",
        "binlake checkpoint set --base 470548480035651584 --replication orders.toml",
        "binlake checkpoint adopt --replication orders.toml",
    )
    help = "show the target's checkpoint and open window; set it after restoring a dump; adopt another writer's row"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`show`, `set` or `adopt`, the replication's file, the cluster."""
        actions = add_actions(parser, _ACTIONS)
        actions["set"].add_argument(
            "--base",
            metavar="TS|FOLDER",
            help="the commit_ts at which the target equals the source, or the folder of the dump restored into it",
        )
        actions["adopt"].add_argument(
            "--close-window",
            action="store_true",
            help="abandon the window that another replication left open and continue from the checkpoint",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the checkpoint; `set` and `adopt` first make this replication the row's owner."""
        replication, target, cluster_id = read_row_arguments(args)
        if args.action == "adopt":
            _adopt(replication, target, cluster_id, close=args.close_window)
        if args.action == "set":
            set_checkpoint(replication, target, cluster_id, _parse_base(args.base))
        stored, opened = read_stored_checkpoint(target, cluster_id), read_open_window(replication, cluster_id)
        answer = _describe_checkpoint(cluster_id, stored.checkpoint, opened)
        answer["written"] = str(stored.recorded) if stored.is_moved else None
        answer["set_aside"] = [table.to_dict() for table in read_tables_aside(replication, cluster_id)]
        print(json.dumps(answer, indent=2) if args.output == "json" else _format_text(answer))
        return 0


def read_stored_checkpoint(target: TargetSection, cluster_id: int) -> StoredCheckpoint:
    """The row as it is, also if another hand moved it."""
    with closing(TargetSession(target)) as session:
        return CheckpointTable(target.checkpoint_schema, cluster_id).read_stored(session)


def _adopt(replication: Replication, target: TargetSection, cluster_id: int, *, close: bool) -> None:
    _require_cluster(cluster_id)
    schema = target.checkpoint_schema
    with closing(TargetSession(target)) as session:
        create_tables(session, schema)
        opened = read_open_progress(session, schema, cluster_id)
        other = opened.replication if opened is not None and opened.replication != replication.name else None
        # Both replications are claimed, so that neither can write meanwhile.
        with open_claimed_transaction(session, target, [replication.name, *([] if other is None else [other])]):
            if other is not None:
                _close_window(session, schema, cluster_id, other, close=close)
            take_ownership(session, schema, cluster_id, replication.name, replication.compute_data_hash())
            CheckpointTable(schema, cluster_id).accept(session)
            forget_written_progress(session, schema, cluster_id)


def set_checkpoint(replication: Replication, target: TargetSection, cluster_id: int, base: int) -> None:
    """Record that the target equals the source at `base` (commit_ts). The first window begins there.

    Raises ConfigError without a cluster, CheckpointConflict if the target has another checkpoint, which stays.
    """
    _require_cluster(cluster_id)
    schema = target.checkpoint_schema
    with closing(TargetSession(target)) as session:
        create_tables(session, schema)
        with open_claimed_transaction(session, target, [replication.name]):
            table = CheckpointTable(schema, cluster_id)
            known = table.read_stored(session, lock=True).checkpoint
            if known is not None and known.commit_ts != base:
                raise CheckpointConflict(
                    f"the target has a checkpoint already, {known.commit_ts}",
                    where={"schema": schema, "cluster_id": cluster_id, "base": base},
                    hint="restore the dump into a target without it, or drop the row if the target was restored since",
                )
            if known is None:
                table.write(session, Checkpoint(base, consistent=True))
                take_ownership(session, schema, cluster_id, replication.name, replication.compute_data_hash())


def _parse_base(text: str | None) -> int:
    """The commit_ts that `--base` names."""
    if text is None:
        raise ConfigError("set needs --base", hint="a commit_ts, or the folder of the dump that was restored")
    base = int(text) if text.isdecimal() else read_dump_position(Path(text)).commit_ts
    if not base:
        raise ConfigError(
            "the dump is from MySQL or MariaDB: it has a position in the source's log, not a commit_ts",
            where={"folder": text},
            hint="start the feeder at this position:"
            ' mode = "dump" and definitions = FOLDER in [source.start] of feeder.toml',
        )
    return base


def _require_cluster(cluster_id: int) -> None:
    if not cluster_id:
        raise ConfigError(
            "the cluster id of the row to write is unknown", hint="give --cluster-id, or set source.cluster-id"
        )


def _close_window(session: TargetSession, schema: str, cluster_id: int, replication: str, *, close: bool) -> None:
    """Close the window if the target equals the source at the checkpoint, DDL included: between two whole segments."""
    progress = read_progress(session, schema, replication)
    if progress is None or not progress.is_open:
        return
    window = f"{progress.open_lo}-{progress.open_hi}"
    if progress.ddl_state == "intent":
        raise CheckpointConflict(
            f"the replication {replication} began a DDL of its window {window}, and only that replication can determine"
            " whether it ran",
            where={"ddl": (progress.ddl_sql or "")[:300], "commit_ts": progress.ddl_commit_ts},
            hint=f"let {replication} finish its window (`binlake stage finalize`), then adopt",
        )
    checkpoint = CheckpointTable(schema, cluster_id).read_stored(session).checkpoint
    if progress.ddl_state == "done" and checkpoint is not None and checkpoint.commit_ts < (progress.ddl_commit_ts or 0):
        raise CheckpointConflict(
            f"a DDL of the window {window} ran, but earlier rows of {replication} are not applied yet",
            where={"ddl": (progress.ddl_sql or "")[:300], "commit_ts": progress.ddl_commit_ts},
            hint=f"let {replication} finish its window (`binlake stage finalize`), then adopt",
        )
    if WindowLedger(schema, replication, progress.open_lo or 0, progress.open_hi or 0).read_digests(
        session, progress.segment
    ):
        raise CheckpointConflict(
            f"the replication {replication} is in the middle of segment {progress.segment} of its window {window}",
            where={"schema": schema},
            hint=f"let {replication} finish it (`binlake stage finalize`): only its ledger shows which rows are"
            " applied",
        )
    if not close:
        raise CheckpointConflict(
            f"the replication {replication} holds the window {window} open",
            where={"schema": schema, "segment": progress.segment},
            hint=f"let {replication} finish it (`binlake stage finalize`), or abandon it with --close-window",
        )
    write_progress(session, schema, progress.with_window_closed())


def _describe_checkpoint(
    cluster_id: int, checkpoint: Checkpoint | None, progress: TargetProgress | None
) -> dict[str, Any]:
    """The answer for people and programs; every commit_ts is a decimal string."""
    answer: dict[str, Any] = {"cluster_id": str(cluster_id), "checkpoint": None, "open_window": None}
    if checkpoint is not None:
        answer["checkpoint"] = {
            "consistent": checkpoint.consistent,
            "commit_ts": str(checkpoint.commit_ts),
            "time": _format_time(checkpoint.commit_ts),
            "ts_map": {key: str(value) for key, value in checkpoint.ts_map.items()},
            "schema_version": checkpoint.schema_version,
        }
    if progress is not None:
        answer["open_window"] = {
            "replication": progress.replication,
            "lo": str(progress.open_lo),
            "hi": str(progress.open_hi),
            "exit_ts": str(progress.exit_ts),
            "segment": progress.segment,
            "ddl_state": progress.ddl_state,
            "ddl": progress.ddl_sql,
        }
    return answer


def _format_text(answer: dict[str, Any]) -> str:
    checkpoint, window = answer["checkpoint"], answer["open_window"]
    moved = f"moved           by another hand: Binlake wrote {answer['written']} last, and waits for `adopt`"
    if checkpoint is None:
        return moved if answer["written"] else "no checkpoint yet"
    aside = answer["set_aside"]
    state = "consistent" if checkpoint["consistent"] else "applying or interrupted"
    if aside and window is None:
        state = "equal to the source, except for the tables that are set aside"
    lines = [f"commit_ts       {checkpoint['commit_ts']} ({checkpoint['time']} UTC)"]
    lines.append(f"consistent      {checkpoint['consistent']} ({state})")
    lines.append(f"schema version  {checkpoint['schema_version']}")
    if checkpoint["ts_map"]:
        lines.append(f"ts-map          {checkpoint['ts_map']}")
    if answer["written"]:
        lines.append(moved)
    if window is not None:
        lines.append(
            f"open window     {window['lo']}-{window['hi']} of {window['replication']}, segment {window['segment']}"
        )
    if window is not None and window["ddl_state"]:
        lines.append(f"DDL             {window['ddl_state']}: {window['ddl']}")
    lines += [f"set aside       {table['table']} since {table['since']}: {table['reason'][:200]}" for table in aside]
    return "\n".join(lines)


def _format_time(commit_ts: int) -> str:
    return tso.to_datetime(commit_ts).replace(tzinfo=None).isoformat(" ", "milliseconds")


class Row(NamedTuple):
    """A replication, its target, and the source cluster whose row is selected; 0 = the only row."""

    replication: Replication
    target: TargetSection
    cluster_id: int


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, str]) -> dict[str, argparse.ArgumentParser]:
    """Declare each action with its help, `--replication`, `--cluster-id` and `--output`; returns their parsers."""
    parsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {name: parsers.add_parser(name, help=text) for name, text in actions.items()}
    for each in made.values():
        each.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
        each.add_argument(
            "--cluster-id",
            type=int,
            metavar="NUMBER",
            help="number of the row's cluster (default: source.cluster-id, else the only row of the table)",
        )
        add_output(each)
    return made


def read_row_arguments(args: argparse.Namespace) -> Row:
    """The row that `args` select. Raises ConfigError, also for a replication without an SQL target."""
    replication = load_replication(args.replication)
    configured = replication.source.expected_cluster
    return Row(
        replication, replication.require_sql_target(), configured if args.cluster_id is None else args.cluster_id
    )
