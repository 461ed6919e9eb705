"""Chooses what the target does with one DDL: another statement, or nothing; and releases the window that it blocks."""

from __future__ import annotations

from pathlib import Path

from binlake.config.ddlchoices import DdlChoice, build_choice_path, write_choice
from binlake.config.load import load_replication
from binlake.config.model import Replication
from binlake.errors import ConfigError
from binlake.lake.ddls import read_newest_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.rules import Rules
from binlake.target.apply.position import read_open_window
from binlake.target.commands.release import release_ddl


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
        _release(replication, cluster_id, commit_ts)
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


def _release(replication: Replication, cluster_id: int, commit_ts: int) -> None:
    opened = read_open_window(replication, cluster_id)
    if opened is not None and opened.ddl_state and opened.ddl_commit_ts == commit_ts:
        release_ddl(replication.require_sql_target(), cluster_id, replication.name, commit_ts)
