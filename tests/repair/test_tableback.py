"""A table that was set aside returns in the source's state at the checkpoint, or does not return at all (U-16)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.mariadb import MariaDb, execute, rows
from support.shop import Shop
from support.tinylake import TinyLake, fill, replication_toml, set_checkpoint, target_config
from support.workload import Workload, integer, text

from binlake.cli import run as main
from binlake.errors import ConfigError, Drift
from binlake.lake.windowlog import WindowLog
from binlake.repair.rangerepair import BackfillProgress, repair_range
from binlake.repair.tableback import bring_table_back
from binlake.repair.verify import VerifyOptions, verify
from binlake.spark_jobs.commands.table import TableCommand

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

ITEM = ["--table", "shop.item"]
Run = Callable[..., int]


@pytest.fixture
def table(tmp_path: Path) -> Callable[[Shop | TinyLake], Run]:
    """`binlake table` on a shop."""

    def of(shop: Shop | TinyLake) -> Run:
        lake = shop.lake if isinstance(shop, Shop) else shop
        file = tmp_path / "demo.toml"
        file.write_text(replication_toml(lake.replication))
        return lambda action, *more: main(["table", action, "--replication", str(file), *more])

    return of


def is_consistent(server: MariaDb) -> bool:
    checkpoints = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")
    return bool(json.loads(checkpoints[0][0])["consistent"])


def apply_window(shop: Shop) -> None:
    """Apply a window of changes of `item` and `pair` to the target, except for `item`, which is set aside."""
    w = shop.workload
    item, gone = dict(shop.rows("item")[0]), dict(shop.rows("item")[1])
    w.begin().update("shop", "item", item, n="77").delete("shop", "item", **gone).commit()
    w.begin().insert("shop", "item", id="7777", name="new", n="1").insert(
        "shop", "pair", n="9", code="AB", v="x"
    ).commit()
    ts = shop.lake.land()
    there = rows(shop.server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
    set_checkpoint(shop.server, ts, consistent=json.loads(there)["consistent"])
    execute(shop.server, f"UPDATE tidb_binlog.binlake_progress SET exit_ts = {ts}")
    execute(shop.server, "INSERT INTO shop.pair VALUES (9, 0xAB, 'x')")


def test_table_is_compared_and_repaired_and_the_checkpoint_is_consistent_again(
    shop: Shop, table: Callable[[Shop], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    command = table(shop)
    assert command("list") == 3
    assert command("aside", *ITEM, "--reason", "its disk is [red]full") == 0
    assert not is_consistent(shop.server)
    apply_window(shop)
    capsys.readouterr()
    assert command("list", "--output", "json") == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["table"], listed["since"], listed["by"]) == ("shop.item", str(shop.ts), "command")
    assert command("list") == 0
    assert "[red]full" in capsys.readouterr().out

    # The others are compared as usual; this one is only reported as set aside.
    verified = verify(shop.lake.replication, VerifyOptions(chunk_rows=7))
    assert {table.table for table in verified.tables if table.inexact} == {"item"}
    assert verified.equal

    assert command("back", *ITEM, "--output", "json") == 0
    [result] = json.loads(capsys.readouterr().out)
    assert (result["state"], result["rows"], result["detail"]["different"]) == ("back", 4, 3)
    assert is_consistent(shop.server)
    assert command("list") == 3
    assert verify(shop.lake.replication, VerifyOptions(chunk_rows=7)).equal
    reported = [
        (e["state"], json.loads(e["detail"])["table"]) for e in WindowLog(shop.lake.paths).read_events(stage="aside")
    ]
    assert reported == [("set-aside", "shop.item"), ("back", "shop.item")]


def test_missing_table_returns_with_all_its_rows(shop: Shop, table: Callable[[Shop], Run]) -> None:
    command = table(shop)
    create = rows(shop.server, "SHOW CREATE TABLE shop.item")[0][1]
    execute(shop.server, "DROP TABLE shop.item")
    assert command("aside", *ITEM) == 0
    apply_window(shop)
    with pytest.raises(Drift, match="the table is missing") as stop:
        bring_back(shop, "item")
    assert "create" in stop.value.hint
    execute(shop.server, "USE shop", create)
    assert command("back", *ITEM) == 0
    assert verify(shop.lake.replication, VerifyOptions(chunk_rows=7)).equal


def test_dropped_table_is_created_again_with_its_rows(
    shop: Shop, table: Callable[[Shop], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    command = table(shop)
    was = rows(shop.server, "SHOW CREATE TABLE shop.item")[0][1]
    execute(shop.server, "DROP TABLE shop.item")
    assert command("aside", *ITEM) == 0
    apply_window(shop)
    assert command("back", *ITEM, "--recreate", "--rows-are-there") == 1
    capsys.readouterr()
    assert command("back", *ITEM, "--recreate", "--output", "json") == 0
    [result] = json.loads(capsys.readouterr().out)
    assert result["rows"] == len(rows(shop.server, "SELECT * FROM shop.item")) > 0
    assert rows(shop.server, "SHOW CREATE TABLE shop.item")[0][1] == was
    assert verify(shop.lake.replication, VerifyOptions(chunk_rows=7)).equal
    assert is_consistent(shop.server)
    # A table that is there keeps its rows, and what it has besides.
    execute(shop.server, "ALTER TABLE shop.item ADD INDEX own (n)")
    assert command("aside", *ITEM) == command("back", *ITEM, "--recreate") == 0
    assert "`own`" in rows(shop.server, "SHOW CREATE TABLE shop.item")[0][1]


def test_table_with_another_definition_does_not_return(shop: Shop, table: Callable[[Shop], Run]) -> None:
    command = table(shop)
    assert command("aside", *ITEM) == 0
    execute(shop.server, "ALTER TABLE shop.item MODIFY name VARCHAR(90)")
    with pytest.raises(Drift, match="name is varchar"):
        bring_back(shop, "item")
    assert command("list") == 0
    assert not is_consistent(shop.server)


def test_table_dropped_at_the_source_returns_once_the_target_drops_it(shop: Shop, table: Callable[[Shop], Run]) -> None:
    command = table(shop)
    assert command("aside", *ITEM) == 0
    shop.workload.drop_table("shop", "item")
    ts = shop.lake.land()
    set_checkpoint(shop.server, ts, consistent=False)
    execute(shop.server, f"UPDATE tidb_binlog.binlake_progress SET exit_ts = {ts}")
    with pytest.raises(Drift, match="the table is still there") as stop:
        bring_back(shop, "item")
    assert "drop it" in stop.value.hint
    execute(shop.server, "DROP TABLE shop.item")
    assert command("back", *ITEM) == 0


def test_checkpoint_stays_inconsistent_while_another_table_is_aside(shop: Shop, table: Callable[[Shop], Run]) -> None:
    command = table(shop)
    assert command("aside", *ITEM, "--table", "shop.PAIR") == 0
    apply_window(shop)
    assert command("back", *ITEM) == 0
    assert not is_consistent(shop.server)
    assert command("back", "--table", "SHOP.pair") == 0
    assert is_consistent(shop.server)


def test_range_is_repaired_except_for_tables_set_aside(shop: Shop, table: Callable[[Shop], Run]) -> None:
    command = table(shop)
    assert command("aside", *ITEM) == 0
    apply_window(shop)
    execute(shop.server, "DROP TABLE shop.item", "DELETE FROM shop.pair")
    progress = BackfillProgress(WindowLog(shop.lake.paths), "repair", 0, shop.lake.hi)
    done = repair_range(shop.lake.replication, progress)
    assert (set(done.aside), done.rows > 0) == ({"shop.item"}, True)
    assert rows(shop.server, "SELECT COUNT(*) FROM shop.pair") == [(len(shop.rows("pair")),)]


def test_unknown_names_are_refused(shop: Shop, table: Callable[[Shop], Run]) -> None:
    command = table(shop)
    assert command("aside", "--table", "shop.nothing") == 1
    assert command("back", *ITEM) == 1
    assert is_consistent(shop.server)


@pytest.fixture
def old(tmp_path: Path, empty_server: MariaDb) -> TinyLake:
    """A lake that starts after the table's first rows."""
    work = Workload()
    work.create_database("shop")
    work.create_table("shop", "item", [integer("id"), text("name")], ["id"])
    work.create_table("shop", "log", [text("line")])
    work.begin().insert("shop", "item", id=1, name="old").insert("shop", "log", line="old").commit()
    lake = TinyLake(tmp_path, work, {"target": target_config(empty_server)})
    lake.hi = work.clock()
    work.begin().insert("shop", "item", id=2, name="two").commit()
    lake.land()
    fill(empty_server, work)
    set_checkpoint(empty_server, lake.hi)
    return lake


def test_partial_table_needs_a_confirmation_for_the_rest(
    old: TinyLake, empty_server: MariaDb, table: Callable[[TinyLake], Run]
) -> None:
    command = table(old)
    assert command("aside", *ITEM, "--table", "shop.log") == 0
    old.workload.begin().insert("shop", "item", id=3, name="three").insert("shop", "log", line="new").commit()
    ts = old.land()
    set_checkpoint(empty_server, ts, consistent=False)
    execute(empty_server, f"UPDATE tidb_binlog.binlake_progress SET exit_ts = {ts}")
    with pytest.raises(ConfigError, match="has only part of this table") as stop:
        bring_back(old, "item")
    assert "--rows-are-there" in stop.value.hint
    assert command("back", *ITEM, "--rows-are-there") == 0
    assert rows(empty_server, "SELECT * FROM shop.item ORDER BY id") == [(1, "old"), (2, "two"), (3, "three")]
    # Without a key, the number of equal rows cannot be known.
    with pytest.raises(ConfigError, match="without a key"):
        bring_back(old, "log", rows_are_there=True)
    assert not is_consistent(empty_server)


def bring_back(shop: Shop | TinyLake, name: str, **more: bool) -> None:
    bring_table_back((shop.lake if isinstance(shop, Shop) else shop).replication, ("shop", name), **more)


def test_the_command_is_registered() -> None:
    assert TableCommand.help
