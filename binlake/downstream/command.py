"""`binlake checkpoint`: show where a target stands, or take a checkpoint row over from another writer."""

from __future__ import annotations

import argparse
import json
from typing import Any

from binlake.config.load import load_replication
from binlake.config.model import Replication, Target
from binlake.downstream.checkpoint import Checkpoint
from binlake.downstream.fence import claim
from binlake.downstream.position import checkpoint_of, progress_of
from binlake.downstream.progress import Progress, take_ownership
from binlake.downstream.session import Session
from binlake.downstream.tables import create_tables
from binlake.errors import ConfigError


class CheckpointCommand:
    """Show the target's checkpoint, or adopt its row."""

    name = "checkpoint"
    help = "show the target's checkpoint and open window; adopt a row that another replication or a drainer wrote"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`show` or `adopt`, the replication's file, the cluster."""
        parser.add_argument("action", choices=("show", "adopt"))
        parser.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
        parser.add_argument("--cluster-id", type=int, help="default: source.cluster-id, else the only row there is")
        parser.add_argument("--output", choices=("text", "json"), default="text")

    def run(self, args: argparse.Namespace) -> int:
        """Print the checkpoint; `adopt` first makes this replication the row's owner."""
        replication = load_replication(args.replication)
        if replication.target is None:
            raise ConfigError("this replication has no [target]", where={"file": args.replication})
        cluster_id = args.cluster_id if args.cluster_id is not None else int(replication.source.cluster_id or 0)
        if args.action == "adopt":
            _adopt(replication, replication.target, cluster_id)
        shown = _shown(cluster_id, checkpoint_of(replication, cluster_id), progress_of(replication, cluster_id))
        print(json.dumps(shown, indent=2) if args.output == "json" else _text(shown))
        return 0


def _adopt(replication: Replication, target: Target, cluster_id: int) -> None:
    if not cluster_id:
        raise ConfigError("adopt must know the cluster", hint="give --cluster-id, or set source.cluster-id")
    session = Session(target)
    try:
        create_tables(session, target.checkpoint_schema)
        # A claim: nobody of this replication may be writing meanwhile.
        fence = claim(session, target, replication.name)
        session.begin()
        fence.prove(session)
        take_ownership(session, target.checkpoint_schema, cluster_id, replication.name, replication.data_hash())
        session.commit()
        fence.release(session)
    finally:
        session.close()


def _shown(cluster_id: int, checkpoint: Checkpoint | None, progress: Progress | None) -> dict[str, Any]:
    """Values for people and programs: every commit_ts a decimal string."""
    shown: dict[str, Any] = {"cluster_id": str(cluster_id), "checkpoint": None, "open_window": None}
    if checkpoint is not None:
        shown["checkpoint"] = {
            "consistent": checkpoint.consistent,
            "commit_ts": str(checkpoint.commit_ts),
            "ts_map": {key: str(value) for key, value in checkpoint.ts_map.items()},
            "schema_version": checkpoint.schema_version,
        }
    if progress is not None:
        shown["open_window"] = {
            "replication": progress.task,
            "lo": str(progress.open_lo),
            "hi": str(progress.open_hi),
            "exit_ts": str(progress.exit_ts),
            "segment": progress.segment,
            "ddl_state": progress.ddl_state,
            "ddl": progress.ddl_sql,
        }
    return shown


def _text(shown: dict[str, Any]) -> str:
    checkpoint, window = shown["checkpoint"], shown["open_window"]
    if checkpoint is None:
        return "no checkpoint yet"
    state = "consistent" if checkpoint["consistent"] else "applying or interrupted"
    lines = [f"commit_ts       {checkpoint['commit_ts']}", f"consistent      {checkpoint['consistent']} ({state})"]
    lines.append(f"schema version  {checkpoint['schema_version']}")
    if checkpoint["ts_map"]:
        lines.append(f"ts-map          {checkpoint['ts_map']}")
    if window is not None:
        lines.append(
            f"open window     {window['lo']}-{window['hi']} of {window['replication']}, segment {window['segment']}"
        )
    if window is not None and window["ddl_state"]:
        lines.append(f"DDL             {window['ddl_state']}: {window['ddl']}")
    return "\n".join(lines)
