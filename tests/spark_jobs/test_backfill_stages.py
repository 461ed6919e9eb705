"""Rebuild and replay on a real MariaDB, and verify, after the real pipeline with its DDL, mirrors and target."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from history import plain, shown
from mirrored import Mirrored
from support.mariadb import MariaDb

from binlake.errors import CheckpointConflict, ConfigError
from binlake.repair.rangerepair import BackfillProgress
from binlake.repair.verify import VerifyOptions, verify
from binlake.spark_jobs.commands.backfill import rebuild, replay
from binlake.spark_jobs.commands.restore import SINK_STAGES
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.runner import run_sink
from binlake.target import read_checkpoint_ts

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]


def test_range_is_verified_rebuilt_and_replayed_to_another_target(
    mirrored: Mirrored, mariadb: MariaDb, second_mariadb: MariaDb, tmp_path: Path
) -> None:
    # S3-04, C-05, R-01
    mariadb.wipe()
    second_mariadb.wipe()
    shutil.copytree(mirrored.lakehouse.root, tmp_path / "lake")
    address = {"db-type": "mariadb", "host": mariadb.host, "user": mariadb.user}
    config = {"target": {**address, "port": mariadb.port}}
    lakehouse = replace(mirrored.lakehouse, root=tmp_path / "lake", config=config)
    ctx, windows = lakehouse.context(), mirrored.windows
    end, states = windows[-1].hi, mirrored.history.states
    run_sink(ctx, SINK_STAGES, Bounds(0, end))
    found = verify(ctx.replication, VerifyOptions(chunk_rows=7))
    assert (found.commit_ts, found.equal) == (end, True), found.tables

    # A rebuilt window is unchanged, except under other rules; the target stays unchanged in both cases.
    third = windows[2]
    progress = BackfillProgress(ctx.windows, "again", third.lo, third.hi)
    assert [result.state for result in rebuild(ctx, progress, through="convert")] == ["same"]
    inside = next(ts for ts, _ in states if ts > third.lo)
    lakehouse.config["filter"] = {"ignore-txn-commit-ts": [str(inside)]}
    other = lakehouse.context()
    changed = rebuild(other, BackfillProgress(other.windows, "other", third.lo, third.hi), through="merge")
    assert [(result.state, result.detail["changed"]) for result in changed] == [("changed", ["mutation"])]
    del lakehouse.config["filter"]

    # Replay to another target, exactly up to the middle of the second window.
    lakehouse.config["target"] = {**address, "port": second_mariadb.port}
    into = lakehouse.context()
    middle = next(ts for ts, _ in states if ts > windows[1].lo)
    with pytest.raises(ConfigError, match="has not landed"):
        replay(ctx.replication, into, None, end + 1)
    with pytest.raises(ConfigError, match="a target other than the live one"):
        replay(ctx.replication, ctx, None, middle)
    replay(ctx.replication, into, 0, middle)
    assert read_checkpoint_ts(into.replication, 7) == middle
    wanted = next(tables for ts, tables in states if ts == middle)
    assert shown(second_mariadb) == {name: plain(data) for name, data in wanted.items()}
    with pytest.raises(CheckpointConflict, match="the target is at"):
        replay(ctx.replication, into, 0, end)
    assert read_checkpoint_ts(ctx.replication, 7) == end
