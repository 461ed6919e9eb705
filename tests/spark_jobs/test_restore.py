"""A database as of any time: a dump taken inside a window, plus the lake up to a time inside a later one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from history import plain, shown
from mirrored import Mirrored
from support.dumps import write_dump
from support.mariadb import MariaDb, rows

from binlake.errors import CheckpointConflict, ConfigError, LostRange
from binlake.spark_jobs.commands.restore import restore, restore_from_base
from binlake.spark_jobs.job.context import StageContext
from binlake.target import read_checkpoint_ts

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]
CLUSTER = 7


@pytest.fixture
def ctx(mirrored: Mirrored, mariadb: MariaDb, tmp_path: Path) -> StageContext:
    """A copy of the lake, and an empty target."""
    mariadb.wipe()
    shutil.copytree(mirrored.lakehouse.root, tmp_path / "lake")
    target = {"db-type": "mariadb", "host": mariadb.host, "port": mariadb.port, "user": mariadb.user}
    return replace(mirrored.lakehouse, root=tmp_path / "lake", config={"target": target}).context()


def test_dump_and_lake_restore_the_database_as_of_any_time(
    ctx: StageContext, mirrored: Mirrored, mariadb: MariaDb, tmp_path: Path
) -> None:  # S0-01 S0-08
    windows, states = mirrored.windows, mirrored.history.states
    ends = {window.hi for window in windows}
    wanted = {ts: {name: plain(data) for name, data in tables.items()} for ts, tables in states}
    inside = [ts for ts, _ in states if ts not in ends and windows[0].hi < ts < windows[-1].hi]
    base, moments = inside[0], [inside[len(inside) // 2], inside[-1]]

    # No base needed: the lake has everything since the source began.
    restore(ctx, base)
    assert shown(mariadb) == wanted[base]
    folder = write_dump(mariadb, ["shop"], tmp_path / "dump", base)
    mariadb.wipe()

    for moment in moments:
        results = restore_from_base(ctx, str(folder), None, moment)
        assert shown(mariadb) == wanted[moment]
        assert read_checkpoint_ts(ctx.replication, CLUSTER) == moment
        assert "inexact" not in results[-1].detail
    assert [result.state for result in restore_from_base(ctx, str(folder), None, moments[-1])] == ["already", "already"]
    restore(ctx)
    assert shown(mariadb) == wanted[states[-1][0]]
    with pytest.raises(CheckpointConflict, match="goes forward only"):
        restore(ctx, moments[0])

    # Another tool loaded the target, so its commit_ts is given instead.
    restored = shown(mariadb)
    for name in ("binlake_owner", "binlake_progress", "binlake_ledger", "checkpoint"):
        with mariadb.connect() as link, link.cursor() as cursor:
            cursor.execute(f"DELETE FROM tidb_binlog.{name}")
    restore_from_base(ctx, str(windows[-1].hi), None, None)
    assert shown(mariadb) == restored
    assert read_checkpoint_ts(ctx.replication, CLUSTER) == windows[-1].hi


def test_unsuitable_request_is_refused_before_any_write(
    ctx: StageContext, mirrored: Mirrored, mariadb: MariaDb, tmp_path: Path
) -> None:  # S3-13
    first, end = mirrored.windows[0], mirrored.windows[-1].hi
    with pytest.raises(ConfigError, match="has not landed"):
        restore(ctx, end + 1)
    with pytest.raises(ConfigError, match="newer than the commit_ts to restore to"):
        restore_from_base(ctx, str(end), None, end - 1)
    if first.lo:
        with pytest.raises(LostRange, match="the lake begins at"):
            restore_from_base(ctx, str(first.lo - 1), None, end)
    (tmp_path / "metadata").write_text("File = bin.000001\nPosition = 4\n")
    with pytest.raises(ConfigError, match="not a commit_ts"):
        restore_from_base(ctx, str(tmp_path), None, end)
    assert rows(mariadb, "SHOW DATABASES LIKE 'tidb_binlog'") == []
    assert rows(mariadb, "SHOW DATABASES LIKE 'shop'") == []
