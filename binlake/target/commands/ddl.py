"""`binlake ddl`: show the DDL that blocks an open window, choose what the target does with it (another statement, or
nothing), release the window, or show shard locks.

An open window is released before a DDL that the target refuses (S4-46): everything before the DDL is applied, so the
target equals the source at the checkpoint, and the intent's evidence must prove that the DDL had no effect. Shard
locks are tables that share a target and lack each other's DDL.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import structlog

from binlake.common.commandline import Exit
from binlake.config.load import load_replication
from binlake.config.model import Replication
from binlake.config.servers import TargetSection
from binlake.config.sidefiles import DdlChoice, build_choice_path, write_choice
from binlake.errors import CheckpointConflict, ConfigError
from binlake.lake.ddls import find_statement_kind, read_newest_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.rules import Rules
from binlake.target.apply.position import read_open_window
from binlake.target.claim.checkpoint import CheckpointTable
from binlake.target.claim.claim import open_claimed_transaction
from binlake.target.claim.progress import TargetProgress, read_progress, write_progress
from binlake.target.commands.checkpoint import add_actions, read_row_arguments
from binlake.target.commands.locks import resolve_lock, show_locks
from binlake.target.ddl.intents import DdlIntent
from binlake.target.ddl.proof import RenameMarker, judge, read_evidence
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import has_tables
from binlake.window.cuts import name_merge_commands

log = structlog.get_logger()
_WHAT = {
    "ddl": "a DDL of the source",
    "replaced": "the replacement of a DDL",
    "injected": "a statement injected before this commit_ts",
    "": "unknown: the lake does not have the statements of this window",
}
_ACTIONS = {
    "show": "show the DDL that blocks an open window",
    "release": "release the window before the DDL, so that the DDL can be replaced or left out",
    "replace": "let the target run another statement in place of a DDL",
    "skip": "let the target leave a DDL out",
    "lock": "show the tables that share a target and lack a DDL of the others, or continue without them",
}


def release_ddl(target: TargetSection, cluster_id: int, replication: str, commit_ts: int) -> tuple[TargetProgress, int]:
    """Release the window. Returns its progress before, and the checkpoint at which the next window starts.

    Raises CheckpointConflict unless the window of `replication` is blocked by the DDL at `commit_ts`, LeaseHeld while
    another process applies.
    """
    with closing(TargetSession(target)) as session:
        if not has_tables(session, target.checkpoint_schema):
            raise CheckpointConflict("no window was ever opened on this target", where={"target": session.place})
        with open_claimed_transaction(session, target, [replication]):
            progress = _read_refused_ddl(session, target, replication, commit_ts)
            _require_untouched(session, target, progress)
            checkpoint = CheckpointTable(target.checkpoint_schema, cluster_id).read(session, lock=True)
            if checkpoint is None or not (progress.open_lo or 0) <= checkpoint.commit_ts < commit_ts:
                raise CheckpointConflict(
                    "the checkpoint is not before the DDL", where={"commit_ts": commit_ts, "checkpoint": checkpoint}
                )
            write_progress(session, target.checkpoint_schema, progress.with_window_closed())
        return progress, checkpoint.commit_ts


def _read_refused_ddl(
    session: TargetSession, target: TargetSection, replication: str, commit_ts: int
) -> TargetProgress:
    """The progress of the open window, which must be at the intent of that DDL. Raises CheckpointConflict."""
    progress = read_progress(session, target.checkpoint_schema, replication)
    if progress is None or not progress.is_open:
        raise CheckpointConflict(
            "no window is open: nothing is pinned",
            where={"task": replication},
            hint="run `binlake window run`; after a change of the choice about a DDL, first run `binlake stage merge`"
            " for the landed window of the DDL (`binlake window list` shows its bounds)",
        )
    if progress.ddl_state != "intent" or progress.ddl_commit_ts != commit_ts:
        at = (
            f"at the DDL {progress.ddl_commit_ts} ({progress.ddl_state})"
            if progress.ddl_state
            else f"in segment {progress.segment}"
        )
        raise CheckpointConflict(
            f"the open window is not blocked by that DDL: it is {at}",
            where={"commit_ts": commit_ts, "window": f"{progress.open_lo}-{progress.open_hi}"},
            hint="run finalize: it continues until a DDL is refused; then `binlake ddl show` shows that DDL",
        )
    return progress


def _require_untouched(session: TargetSession, target: TargetSection, progress: TargetProgress) -> None:
    """Require proof that the DDL had no effect on the target. Raises CheckpointConflict."""
    intent = _read_intent(progress)
    last = (progress.ddl_sql or "").rsplit(";\n", 1)[-1]
    marker = RenameMarker.of(target.checkpoint_schema, progress.replication, progress.ddl_commit_ts or 0, last)
    if marker is not None and marker.reach_verdict(session) == "before":
        return
    now = read_evidence(session, target, intent.touched, intent.after)
    before = intent.before
    if marker is None and before is not None and judge(before, now, intent.after) == "before":
        return
    raise CheckpointConflict(
        "the target is not in its state before the DDL, or cannot prove it",
        where={"ddl": (progress.ddl_sql or "")[:300], "commit_ts": progress.ddl_commit_ts,
               "tables": ", ".join(".".join(name).rstrip(".") for name in intent.touched)},
        hint="undo the DDL's effects by hand, or run finalize, which counts the DDL as done if the target shows its "
        "result",
    )  # fmt: skip


def _read_intent(progress: TargetProgress) -> DdlIntent:
    try:
        return DdlIntent.from_json(progress.ddl_expected or "")
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointConflict(
            "the record of the DDL does not name its tables",
            where={"ddl": (progress.ddl_sql or "")[:300]},
            hint="let the version of Binlake that began it finish the window",
        ) from error


def choose_about_ddl(file: Path, replication: Replication, cluster_id: int, choice: DdlChoice) -> list[tuple[int, int]]:
    """Write the choice beside the replication's `file`; returns the landed windows whose stage merge must run again.

    An open window that the DDL blocks is released; if that is refused, the choice is not kept. Raises ConfigError for
    a DDL that has not landed or that the configuration already decides about, and as `release_ddl`.
    """
    commit_ts, paths = int(choice.commit_ts), LakePaths.of(replication)
    path = build_choice_path(file, replication.name, commit_ts)
    # A DDL that was left out may be replaced later: it is not in the table then.
    if not path.exists() and not any(line.commit_ts == commit_ts for line in read_newest_ddls(paths, 1, commit_ts)):
        raise ConfigError(
            "no DDL with this commit_ts has landed", where={"commit_ts": commit_ts},
            hint="`binlake ddl show`, or the page of DDL, names it",
        )  # fmt: skip
    before = path.read_bytes() if path.exists() else None
    write_choice(path, choice)
    try:
        # The whole configuration must be valid with it.
        Rules.of(load_replication(file, secrets=False))
        _release_blocked(replication, cluster_id, commit_ts)
    except BaseException:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
        raise
    windows = WindowLog(paths)
    detail = {"commit_ts": choice.commit_ts, "sql": choice.sql, "reason": choice.reason}
    windows.record(WindowEvent("ddl-choice", commit_ts, commit_ts, "chosen", sink="sql", detail=detail))
    return windows.list_landed((commit_ts - 1, commit_ts))


def _release_blocked(replication: Replication, cluster_id: int, commit_ts: int) -> None:
    opened = read_open_window(replication, cluster_id)
    if opened is not None and opened.ddl_state and opened.ddl_commit_ts == commit_ts:
        release_ddl(replication.require_sql_target(), cluster_id, replication.name, commit_ts)


class DdlCommand:
    """Show the DDL in flight, release the window that is blocked by it, or show the shards that differ."""

    examples = (
        "binlake ddl show --replication orders.toml",
        "binlake ddl release --commit-ts 470548480035651584 --replication orders.toml",
        "binlake ddl replace --commit-ts 470548480035651584 --sql 'ALTER TABLE t ADD c INT' --replication orders.toml",
        "binlake ddl skip --commit-ts 470548480035651584 --replication orders.toml",
        "binlake ddl lock --replication orders.toml",
        "binlake ddl lock resolve --table shop.item --replication orders.toml",
    )
    help = (
        "show the DDL that blocks an open window, release the window, replace or leave out a DDL, or show shard locks"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`show`, `release`, `replace`, `skip` or `lock [show|resolve]`, the replication's file, which DDL or table."""
        actions = add_actions(parser, _ACTIONS)
        for name in ("release", "replace", "skip"):
            actions[name].add_argument(
                "--commit-ts",
                metavar="TS",
                required=name != "release",
                help="commit_ts of the DDL, as `show` prints it",
            )
        actions["replace"].add_argument("--sql", required=True, help="one DDL statement in the target's dialect")
        for name in ("replace", "skip"):
            actions[name].add_argument("--reason", default="", help="reason, kept with the choice")
        lock = actions["lock"]
        lock.add_argument(
            "of_lock", nargs="?", choices=("show", "resolve"), default="show",
            help="show which tables wait for which, or resolve: continue without the tables that others wait for",
        )  # fmt: skip
        lock.add_argument("--table", metavar="DB.TABLE", help="resolve: the table of the target")
        lock.add_argument(
            "--without", action="append", default=[], metavar="DB.TABLE",
            help="resolve: a table of the source to continue without (repeatable); default: all that lack the DDL",
        )  # fmt: skip
        lock.add_argument("--sql", default="", help="resolve: this statement instead of the tables' own")

    def run(self, args: argparse.Namespace) -> int:
        """Print the blocking DDL, the released window, or the tables that lack a DDL. Returns 3 if there is none."""
        replication, target, cluster_id = read_row_arguments(args)
        if args.action == "lock" and args.of_lock == "resolve":
            if not args.table:
                raise ConfigError("resolve needs the table", hint="give --table DB.TABLE; `binlake ddl lock` shows it")
            resolved = resolve_lock(replication, args.table, args.without, args.sql)
            print(json.dumps(resolved, indent=2) if args.output == "json" else _format_text(resolved))
            return 0
        if args.action == "lock":
            return show_locks(replication, args.output)
        if args.action in ("replace", "skip"):
            answer = _choose(Path(args.replication), replication, cluster_id, args)
        elif args.action == "release":
            if not (args.commit_ts and args.commit_ts.isdigit()):
                raise ConfigError("release needs the DDL", hint="give --commit-ts; `binlake ddl show` shows it")
            answer = _release(replication, target, cluster_id, int(args.commit_ts))
        else:
            answer = _describe_ddl(replication, cluster_id)
        print(json.dumps(answer, indent=2) if args.output == "json" else _format_text(answer))
        return Exit.DONE if answer else Exit.NOT_FOUND


def _describe_ddl(replication: Replication, cluster_id: int) -> dict[str, str]:
    opened = read_open_window(replication, cluster_id)
    if opened is None or not opened.ddl_state:
        return {}
    commit_ts = opened.ddl_commit_ts or 0
    rules = Rules.of(replication)
    replacement = rules.replacements.get(commit_ts)
    before = _list_injections(rules, commit_ts)
    ignored = str(commit_ts) in replication.filter.ignore_txn_commit_ts
    way = f"replaced by: {replacement}" if replacement else "left out" if ignored else "as pinned"
    way += f"; before it: {'; '.join(before)}" if before else ""
    window = f"{opened.open_lo}-{opened.open_hi}"
    return {
        "window": window,
        "commit_ts": str(commit_ts),
        "what": _WHAT[find_statement_kind(LakePaths.of(replication), window, opened.segment)],
        "state": opened.ddl_state,
        "pinned": opened.ddl_sql or "",
        "configured": way,
    }


def _choose(file: Path, replication: Replication, cluster_id: int, args: argparse.Namespace) -> dict[str, Any]:
    if not args.commit_ts.isdigit():
        raise ConfigError("the DDL is named by its commit_ts", hint="`binlake ddl show` shows it")
    commit_ts = int(args.commit_ts)
    choice = DdlChoice(commit_ts=args.commit_ts, sql=getattr(args, "sql", ""), reason=args.reason)
    windows = choose_about_ddl(file, replication, cluster_id, choice)
    log.warning("ddl_choice", commit_ts=args.commit_ts, sql=choice.sql, reason=choice.reason)
    following = f"run {name_merge_commands(windows)}; then run `binlake window run`" if windows else ""
    return {
        "commit_ts": str(commit_ts), "choice": f"replaced by: {choice.sql}" if choice.sql else "left out",
        "merge": [f"{lo}-{hi}" for lo, hi in windows], "next": following,
    }  # fmt: skip


def _list_injections(rules: Rules, commit_ts: int) -> list[str]:
    return [injection.sql for injection in rules.injections if injection.commit_ts == commit_ts]


def _release(replication: Replication, target: TargetSection, cluster_id: int, commit_ts: int) -> dict[str, str]:
    released, checkpoint = release_ddl(target, cluster_id, replication.name, commit_ts)
    window = f"{released.open_lo}-{released.open_hi}"
    detail = {"ddl_commit_ts": str(commit_ts), "ddl": released.ddl_sql or "", "checkpoint": str(checkpoint)}
    log.warning("window_released", window=window, **detail)
    event = WindowEvent("release", released.open_lo or 0, released.open_hi or 0, "released", sink="sql", detail=detail)
    WindowLog(LakePaths.of(replication)).record(event)
    again = _list_injections(Rules.of(replication), commit_ts)
    first = f"remove the injections that already ran from the configuration, or they run again: {'; '.join(again)}."
    landed = WindowLog(LakePaths.of(replication)).list_landed((commit_ts - 1, commit_ts))
    merges = name_merge_commands(landed)
    following = f"after a change of the choice about it, run {merges}; then run `binlake window run`"
    return {"released": window, "next_window_from": str(checkpoint), "ddl": detail["ddl"], "commit_ts": str(commit_ts),
            "next": f"{first} Then {following}" if again else following}  # fmt: skip


def _format_text(answer: dict[str, Any]) -> str:
    if not answer:
        return "no DDL is in flight"
    shown = {key: ", ".join(value) if isinstance(value, list) else value for key, value in answer.items()}
    return "\n".join(f"{key.replace('_', ' '):17}{value}" for key, value in shown.items())
