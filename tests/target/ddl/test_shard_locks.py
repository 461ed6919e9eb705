"""`binlake ddl lock` over a lake names the shards that lack a DDL, by table and by statement (R-15)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tinylake import TinyLake
from support.workload import Workload, integer

from binlake.cli import run
from binlake.target.commands.locks import show_locks

ROUTES = [{"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "all", "target-table": "t"}]


def test_shard_without_the_column_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = Workload()
    for number in (1, 2):
        workload.create_database(f"s{number}")
        workload.create_table(f"s{number}", f"t_{number}", [integer("id")], ["id"])
    lake = TinyLake(tmp_path, workload, {"routes": ROUTES, "target": {}})
    lake.land(mirrored=False)
    assert show_locks(lake.replication, "text") == 3
    assert capsys.readouterr().out == "all tables that share a target have the same shape\n"

    workload.add_column("s1", "t_1", integer("n"))
    lake.land(mirrored=False)
    assert show_locks(lake.replication, "json") == 0
    (lock,) = json.loads(capsys.readouterr().out)
    assert (lock["target"], lock["state"]) == ("all.t", "the target can store the rows of all")
    has, lacks = lock["tables"]
    assert (has["source"], has["table"], has["lacks"]) == ("demo", "s1.t_1", [])
    assert "`n`" in has["ddl"]
    assert has["commit_ts"] == str(workload.logged[-1].commit_ts)
    assert (lacks["table"], lacks["lacks"]) == ("s2.t_2", ["column n"])
    assert lacks["ddl"].startswith("CREATE TABLE")
    assert show_locks(lake.replication, "text") == 0
    assert "column n" in capsys.readouterr().out


def test_no_lock_is_reported_before_the_first_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(f'name = "demo"\n[lake]\npath = "{tmp_path}/lake"\n[target]\n')
    assert run(["ddl", "lock", "--replication", str(file)]) == 1
    assert "nothing has landed yet" in capsys.readouterr().err
