"""A DDL that no target can express: what is before it is applied, then it waits, and each way on works in any order."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from lakehouse import CLUSTER_ID, Lakehouse, Source
from support.mariadb import MariaDb, execute, rows
from support.workload import Workload, integer

from binlake.cli import prepare
from binlake.common.tomlfile import to_toml_sections
from binlake.config import load_replication
from binlake.errors import CheckpointConflict, ConfigError, TargetRefused
from binlake.health.values import build_stage_row
from binlake.rows.schema import Action
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.results import show
from binlake.spark_jobs.stages import compact, convert, finalize, merge
from binlake.target.commands import ddl
from binlake.target.commands.ddl import release_ddl

pytestmark = pytest.mark.mariadb


class Waiting:
    """One landed window: rows of `a`, RECOVER TABLE `b`, rows of both; `ddl`: the commit_ts of RECOVER."""

    def __init__(self, root: Path, server: MariaDb) -> None:
        w = Workload()
        w.create_database("shop")
        for name in ("a", "b"):
            w.create_table("shop", name, [integer("id")], ["id"])
        w.begin().insert("shop", "a", id=1).commit()
        recovered = dict(w.table("shop", "b").raw)
        w.drop_table("shop", "b")
        w.begin().insert("shop", "a", id=2).commit()
        self.ddl = w._ddl(Action.RECOVER_TABLE, "shop", "b", "RECOVER TABLE `b`", recovered)
        w._put("shop", recovered)
        w.rows["shop", "b"] = []
        w.begin().insert("shop", "a", id=3).insert("shop", "b", id=3).commit()
        execute(server, "DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS tidb_binlog")
        address = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
        self.server, self.lake = server, Lakehouse(None, root, Source.of_workload(w))
        self.lake.config["target"] = {"db-type": server.name, **address}
        self.landed = self.lake.land(0, w.clock())

    def choose(self, **config: Any) -> None:
        """Take the settings, and run merge as the error's hint says."""
        target = self.lake.config["target"]
        self.lake.config = {"target": target, **config}
        merge.run(self.lake.context(), self.landed)

    def run(self) -> Bounds:
        """Compact, convert and finalize the next window of the target."""
        ctx = self.lake.context()
        found = compact.run(ctx, self.landed)
        bounds = Bounds(found.lo, found.hi)
        convert.run(ctx, bounds)
        finalize.run(ctx, bounds)
        return bounds

    def release(self) -> None:
        """`binlake ddl release` of the window that the DDL blocks."""
        target = self.lake.context().replication.require_sql_target()
        release_ddl(target, CLUSTER_ID, "demo", self.ddl)

    def ids(self, table: str) -> list[int]:
        return [one for (one,) in rows(self.server, f"SELECT id FROM shop.{table} ORDER BY id")]

    @property
    def choices(self) -> dict[str, dict[str, Any]]:
        sql = "CREATE TABLE shop.b (id INT PRIMARY KEY)"
        return {
            "replace": {"ddl-replacement": [{"commit-ts": str(self.ddl), "sql": sql}]},
            "by hand": {"filter": {"ignore-txn-commit-ts": [str(self.ddl)]}},
            "exclude": {"filter": {"ignore-table": [{"db-name": "shop", "tbl-name": "b"}]}},
        }


@pytest.fixture
def waiting(tmp_path: Path, server: MariaDb) -> Waiting:
    return Waiting(tmp_path / "lake", server)


def test_what_is_before_a_refused_ddl_is_applied_and_then_it_waits(
    waiting: Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    ctx = waiting.lake.context()
    # At first and when it is derived again, the result says what waits; so do the run's page and the command line.
    first, again = (compact.run(ctx, waiting.landed) for _ in range(2))
    assert first.detail["waits_for_ddl"] == again.detail["waits_for_ddl"]
    ddl = first.detail["waits_for_ddl"]
    assert (ddl["commit_ts"], ddl["query"]) == (str(waiting.ddl), "RECOVER TABLE `b`;")
    assert "a DDL cannot be expressed" in ddl["text"]
    assert "ddl-replacement" in ddl["ways"]
    (event, *_) = ctx.windows.read_events(stage="compact")
    show([first], "text")
    shown = "".join(capsys.readouterr().out.split())
    for text in (build_stage_row(event)["reason"], shown):
        assert f"thewindowendsbeforetheDDLatcommit_ts{waiting.ddl},whichwaits" in "".join(text.split())
    assert waiting.run().hi < waiting.ddl
    assert waiting.ids("a") == [1, 2]
    for _ in range(2):
        with pytest.raises(TargetRefused, match="a DDL cannot be expressed") as caught:
            waiting.run()
        assert waiting.ids("a") == [1, 2]
    (bounds,) = re.findall(r"binlake stage merge --replication FILE --lo (\d+) --hi (\d+)", caught.value.hint)
    assert tuple(map(int, bounds)) == (waiting.landed.lo, waiting.landed.hi)


ORDER = ("exclude", "replace", "by hand")
OTHERS = [order for order in permutations(ORDER) if order != ORDER]


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize("order", [ORDER, *(pytest.param(one, marks=pytest.mark.soak) for one in OTHERS)], ids="-".join)
def test_each_way_on_works_whatever_was_chosen_before(waiting: Waiting, order: tuple[str, ...]) -> None:
    waiting.run()
    for choice in order:
        for _ in range(2):
            # Chosen, sealed, and not applied: the operator thinks again.
            waiting.choose(**waiting.choices[choice])
            ctx = waiting.lake.context()
            found = compact.run(ctx, waiting.landed)
            convert.run(ctx, Bounds(found.lo, found.hi))
    if order[-1] == "by hand":
        execute(waiting.server, "CREATE TABLE shop.b (id INT PRIMARY KEY)")
    assert waiting.run().hi == waiting.landed.hi
    assert waiting.ids("a") == [1, 2, 3]
    if order[-1] != "exclude":
        assert waiting.ids("b") == [3]


@pytest.mark.parametrize("release_first", [True, False])
def test_an_open_window_blocked_by_a_replacement_takes_another_choice_after_a_release(
    waiting: Waiting, release_first: bool
) -> None:
    waiting.run()
    bad = {"commit-ts": str(waiting.ddl), "sql": "ALTER TABLE shop.nothing ADD x INT"}
    waiting.choose(**{"ddl-replacement": [bad]})
    with pytest.raises(TargetRefused):
        waiting.run()
    if not release_first:
        waiting.choose(**waiting.choices["exclude"])
        for _ in range(2):
            with pytest.raises(CheckpointConflict, match="sealed with segments that differ") as caught:
                waiting.run()
            assert "`binlake ddl release`" in caught.value.hint
    waiting.release()
    with pytest.raises(CheckpointConflict, match="no window is open"):
        waiting.release()
    if release_first:
        waiting.choose(**waiting.choices["exclude"])
    assert waiting.run().hi == waiting.landed.hi
    assert waiting.ids("a") == [1, 2, 3]


class ByCommand:
    """The replication's file, and `binlake ddl` on it; the stages read the same file."""

    def __init__(self, folder: Path, waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.waiting = folder / "demo.toml", waiting
        config = {"name": "demo", "lake": {"path": str(waiting.lake.root)}, "target": waiting.lake.config["target"]}
        self.file.write_text(to_toml_sections(config))
        monkeypatch.setattr(waiting.lake, "context", lambda: StageContext(load_replication(self.file), "test", None))

    def run(self, action: str, *words: str) -> dict[str, Any]:
        own = ["--commit-ts", str(self.waiting.ddl), *words]
        command, args = prepare(
            ["ddl", action, *own, "--replication", str(self.file), "--cluster-id", str(CLUSTER_ID), "--output", "json"]
        )
        with redirect_stdout(io.StringIO()) as printed:
            assert command.run(args) == 0
        # Before the answer there are lines of the log.
        answer: dict[str, Any] = json.loads(printed.getvalue()[printed.getvalue().index("{") :])
        assert answer["merge"] == [f"{self.waiting.landed.lo}-{self.waiting.landed.hi}"]
        merge.run(self.waiting.lake.context(), self.waiting.landed)
        return answer

    @property
    def choice(self) -> Path:
        return self.file.parent / "ddl" / "demo" / f"{self.waiting.ddl}.toml"


@pytest.fixture
def by_command(tmp_path: Path, waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> ByCommand:
    return ByCommand(tmp_path, waiting, monkeypatch)


def test_ddl_is_replaced_by_a_command_even_while_its_window_is_open(by_command: ByCommand) -> None:
    waiting = by_command.waiting
    waiting.run()
    by_command.run("replace", "--sql", "ALTER TABLE shop.nothing ADD x INT", "--reason", "it isn't there")
    with pytest.raises(TargetRefused):
        waiting.run()
    # The second choice takes the place of the first, and the window that pinned the first is released.
    sql = waiting.choices["replace"]["ddl-replacement"][0]["sql"]
    answer = by_command.run("replace", "--sql", sql)
    assert answer["choice"] == f"replaced by: {sql}"
    assert waiting.run().hi == waiting.landed.hi
    assert (waiting.ids("a"), waiting.ids("b")) == ([1, 2, 3], [3])
    events = waiting.lake.context().windows.read_events(stage="ddl-choice")
    assert [json.loads(event["detail"])["reason"] for event in events] == ["it isn't there", ""]


def test_ddl_is_left_out_by_a_command(by_command: ByCommand) -> None:
    waiting = by_command.waiting
    waiting.run()
    by_command.run("skip")
    execute(waiting.server, "CREATE TABLE shop.b (id INT PRIMARY KEY)")
    assert waiting.run().hi == waiting.landed.hi
    assert (waiting.ids("a"), waiting.ids("b")) == ([1, 2, 3], [3])


def test_choice_that_cannot_be_is_not_kept(by_command: ByCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = by_command.waiting
    with pytest.raises(ConfigError, match="no DDL with this commit_ts has landed"):
        by_command.run("skip", "--commit-ts", str(waiting.ddl + 1))
    waiting.run()
    by_command.run("replace", "--sql", "ALTER TABLE shop.nothing ADD x INT")
    with pytest.raises(TargetRefused):
        waiting.run()
    before = by_command.choice.read_bytes()

    def refuse(*_: Any) -> None:
        raise CheckpointConflict("the target is not in its state before the DDL")

    monkeypatch.setattr(ddl, "release_ddl", refuse)
    with pytest.raises(CheckpointConflict):
        by_command.run("skip")
    assert by_command.choice.read_bytes() == before
    own = f'[filter]\nignore-txn-commit-ts = ["{waiting.ddl}"]\n'
    by_command.file.write_text(by_command.file.read_text() + own)
    with pytest.raises(ConfigError, match="two choices about a DDL"):
        load_replication(by_command.file)
