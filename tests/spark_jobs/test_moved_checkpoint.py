"""A checkpoint row that another hand moved is refused in every run until it is back or adopted (R-23, R-43)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlsink import LandedShop, Sink
from support.examples import spread
from support.mariadb import MariaDb, execute, rows

from binlake.errors import CheckpointConflict, CheckpointMoved
from binlake.lake import targetevents
from binlake.repair.serverside import open_target_snapshot
from binlake.spark_jobs.commands.restore import SINK_STAGES
from binlake.spark_jobs.job.runner import run_sink
from binlake.spark_jobs.stages import compact
from binlake.target.commands.checkpoint import CheckpointCommand, set_checkpoint

pytestmark = pytest.mark.mariadb

SECOND = 1000 << 18
_SET = "UPDATE tidb_binlog.checkpoint SET checkPoint = JSON_SET(checkPoint, '$.commitTS', {ts})"
MOVES: dict[str, Callable[[int, int], list[str]]] = {
    "ahead": lambda _lo, hi: [_SET.format(ts=hi)],
    "far ahead": lambda lo, _hi: [_SET.format(ts=lo + 40 * SECOND)],
    "behind": lambda _lo, _hi: [_SET.format(ts=1)],
    "gone": lambda _lo, _hi: ["DELETE FROM tidb_binlog.checkpoint"],
    "another row, without Binlake's records": lambda _lo, hi: [
        _SET.format(ts=hi),
        *(f"DROP TABLE tidb_binlog.binlake_{name}" for name in ("position", "opened", "progress", "owner", "ledger")),
    ],
}


def _open(server: MariaDb, tmp_path: Path, landed_shop: LandedShop) -> Sink:
    """The first of three landed windows is applied."""
    sink = Sink(None, tmp_path / "lake", server, landed=landed_shop(3))
    sink.apply(sink.windows[0])
    return sink


def _run(sink: Sink) -> list[str]:
    return [result.state for result in run_sink(sink.ctx, SINK_STAGES, sink.windows[-1])]


def _events(sink: Sink) -> list[str]:
    return [event["state"] for event in sink.ctx.windows.read_events(stage=targetevents.POSITION)]


def _command(sink: Sink, action: str, capsys: pytest.CaptureFixture[str]) -> str:
    target = sink.ctx.replication.require_sql_target()
    file = Path(sink.ctx.paths.root).parent / "r.toml"
    file.write_text(
        f'name = "{sink.ctx.replication.name}"\n[lake]\npath = "{sink.ctx.paths.root}"\n[target]\n'
        f'db-type = "{target.db_type}"\nhost = "{target.host}"\nport = {target.port}\nuser = "{target.user}"\n'
    )
    parser, command = argparse.ArgumentParser(), CheckpointCommand()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([action, "--replication", str(file), "--cluster-id", "7"])) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("move", spread(list(MOVES), least=4))
def test_moved_row_is_refused_in_every_run_and_heals_when_it_is_set_back(
    server: MariaDb, tmp_path: Path, landed_shop: LandedShop, move: str
) -> None:
    sink = _open(server, tmp_path, landed_shop)
    lo, hi = sink.windows[0].hi, sink.windows[1].hi
    before = sink.target()
    (own,) = rows(server, "SELECT clusterID, checkPoint FROM tidb_binlog.checkpoint")
    execute(server, *MOVES[move](lo, hi))
    for _ in range(3):
        with pytest.raises(CheckpointMoved) as refused:
            _run(sink)
        assert str(lo) in str(refused.value)
        assert "checkpoint adopt" in refused.value.hint
    assert sink.target() == before
    assert _events(sink) == ["moved"]  # once, not for each run
    execute(server, f"REPLACE INTO tidb_binlog.checkpoint VALUES ({own[0]}, '{own[1]}')")
    assert _run(sink) == ["done", "done", "done"]
    assert _events(sink) == ["moved", "back"]
    assert sink.target() == sink.model(sink.windows[-1].hi)


def test_moved_row_is_shown_until_it_is_adopted(
    server: MariaDb, tmp_path: Path, landed_shop: LandedShop, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = _open(server, tmp_path, landed_shop)
    lo, hi = sink.windows[0].hi, sink.windows[1].hi
    execute(server, _SET.format(ts=hi))
    assert f"by another hand: Binlake wrote {lo} last" in _command(sink, "show", capsys)
    target = sink.ctx.replication.require_sql_target()
    with pytest.raises(CheckpointMoved), open_target_snapshot(target, 7, sink.ctx.replication.name):
        pass  # verify compares nothing with a position that it cannot believe
    assert "by another hand" not in _command(sink, "adopt", capsys)
    assert compact.run(sink.ctx, sink.windows[-1]).lo == hi


def test_row_moved_back_is_applied_again_once_adopted(
    server: MariaDb, tmp_path: Path, landed_shop: LandedShop, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = _open(server, tmp_path, landed_shop)
    execute(server, _SET.format(ts=1))
    _command(sink, "adopt", capsys)
    assert compact.run(sink.ctx, sink.windows[-1]).lo == 1


def test_older_copy_of_the_whole_target_needs_no_adoption(
    server: MariaDb, tmp_path: Path, landed_shop: LandedShop
) -> None:
    # rows and records are of one moment, as a backup restores them
    sink = _open(server, tmp_path, landed_shop)
    names = [name for (name,) in rows(server, "SHOW TABLES FROM tidb_binlog")] + ["shop." + name for (name,) in
             rows(server, "SHOW TABLES FROM shop")]  # fmt: skip
    copies: dict[str, Any] = {name: _read(server, name) for name in names}
    _run(sink)
    execute(server, "DROP DATABASE shop", "CREATE DATABASE shop")
    for name, (create, data) in copies.items():
        db, table = name.split(".") if "." in name else ("tidb_binlog", name)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS `{db}`.`{table}`")
            cursor.execute(f"USE `{db}`")
            cursor.execute(create)
            for row in data:
                cursor.execute(f"INSERT INTO `{table}` VALUES ({', '.join(['%s'] * len(row))})", row)
    assert _run(sink)[-1] == "done"
    assert sink.target() == sink.model(sink.windows[-1].hi)


def _read(server: MariaDb, name: str) -> tuple[str, list[Any]]:
    full = name if "." in name else f"tidb_binlog.{name}"
    return rows(server, f"SHOW CREATE TABLE {full}")[0][1], rows(server, f"SELECT * FROM {full}")


def test_set_refuses_a_row_at_another_place_and_takes_one_at_that_place(
    server: MariaDb, tmp_path: Path, landed_shop: LandedShop
) -> None:
    sink = _open(server, tmp_path, landed_shop)
    replication, hi = sink.ctx.replication, sink.windows[1].hi
    target = replication.require_sql_target()
    execute(server, _SET.format(ts=hi))
    with pytest.raises(CheckpointConflict, match=f"has a checkpoint already, {hi}"):
        set_checkpoint(replication, target, 7, hi + 1)
    execute(server, "DELETE FROM tidb_binlog.checkpoint")
    set_checkpoint(replication, target, 7, hi)
    (stored,) = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")
    assert json.loads(stored[0])["commitTS"] == hi
    assert compact.run(sink.ctx, sink.windows[-1]).lo == hi
