"""Windows into differently shaped tables, through compact, convert and finalize: the target's extra values stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lakehouse import Lakehouse, Source
from pyspark.sql import SparkSession
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, primary, table
from support.workload import Workload, integer, text

from binlake.cli import run as main
from binlake.ddl.definitions import TableShape
from binlake.errors import ConfigError
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.shared.batches import require_nothing_kept
from binlake.spark_jobs.shared.sqlwindow import read_newest
from binlake.spark_jobs.stages import compact, convert, finalize
from binlake.target.definitions.forms import build_expected_form

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]

# The article's example: the target has its own key, and the source's primary key is not a key there (S4-26).
TABLES = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "CREATE TABLE shop.acct (new_id INT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL, user_id INT NOT NULL UNIQUE,"
    " name VARCHAR(64), note VARCHAR(9) DEFAULT 'x')",
    "CREATE TABLE shop.item (id INT PRIMARY KEY, code VARCHAR(64) UNIQUE, n INT, ref VARCHAR(9) NULL UNIQUE,"
    " price FLOAT DEFAULT 0.5)",
    "CREATE TABLE shop.part (id INT PRIMARY KEY, b INT)",
)


class Shop:
    """Three tables that have other shapes at the target, and a landed window of changes to them."""

    def __init__(self, spark: SparkSession, root: Path, server: MariaDb, **target: Any) -> None:
        execute(server, "DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS tidb_binlog", *TABLES)
        w = self.work = Workload()
        w.create_database("shop")
        user = integer("user_id", not_null=True)
        w.create_table("shop", "acct", [integer("id"), user, text("name")], ["id"], ["user_id"])
        w.create_table("shop", "item", [integer("id"), text("code"), integer("n")], ["id"], ["code"])
        w.create_table("shop", "part", [integer("id"), integer("b"), integer("c")], ["id"])
        txn = w.begin()
        for n in range(1, 8):
            code = "abcdefg"[n - 1]
            txn.insert("shop", "acct", id=n, user_id=n * 10, name="a").insert("shop", "part", id=n, b=n, c=n)
            txn.insert("shop", "item", id=n, code=code, n=n)
            execute(
                server,
                f"INSERT INTO shop.acct (id, user_id, name, note) VALUES ({n}, {n}0, 'a', 'note {n}')",
                f"INSERT INTO shop.item VALUES ({n}, '{code}', {n}, 'ref {n}', {n}.1)",
                f"INSERT INTO shop.part VALUES ({n}, {n})",
            )
        txn.commit()
        lo = w.clock()
        self.bounds = Bounds(lo, _change_rows(w))
        self.config = {"db-type": "mariadb", "host": "127.0.0.1", "port": server.port, "user": server.user, **target}
        self.lakehouse = Lakehouse(spark, root, Source.of_workload(w), {"target": self.config})
        self.lakehouse.land(self.bounds.lo, self.bounds.hi)

    @property
    def ctx(self) -> StageContext:
        return self.lakehouse.context()


def _row(w: Workload, of: str, **found: object) -> dict[str, Any]:
    [(column, value)] = found.items()
    return dict(next(row for row in w.rows["shop", of] if row[column] == str(value)))


def _change_rows(w: Workload) -> int:
    """Swap values, move rows to other keys, add a column to a differently shaped table; return the window's end."""

    def update(of: str, where: int, column: str = "id", **after: object) -> None:
        w.begin().update("shop", of, _row(w, of, **{column: where}), **after).commit()

    update("acct", 1, name="changed")
    for old, new in ((20, 99), (30, 20), (99, 30)):  # swapped
        update("acct", old, "user_id", user_id=new)
    update("acct", 4, user_id=44)
    update("acct", 5, id=55)
    w.begin().delete("shop", "acct", **_row(w, "acct", id=6)).insert(
        "shop", "acct", id=8, user_id=80, name="n"
    ).commit()
    update("item", 1, code=None)
    update("item", 2, code="a")
    update("item", 1, code="b")
    update("item", 3, id=33)
    w.begin().delete("shop", "item", **_row(w, "item", id=4)).insert("shop", "item", id=9, code="d", n=9).commit()
    w.add_column("shop", "item", integer("stock", default="3"))
    update("item", 5, stock=4)
    update("item", 33, id=34)
    update("part", 1, b=100, c=200)
    return w.clock()


def test_window_into_differently_shaped_tables_keeps_extra_values(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # R-12, S4-22, S4-23, S4-26, S4-27, S4-29
    preserved = [{"db-name": "shop", "tbl-name": "acct|item", "preserve": True}]
    shop = Shop(spark, tmp_path / "lake", mariadb, mode="parallel", tables=preserved, **{"sync-mode": 2})
    differing = compact.run(shop.ctx, shop.bounds).detail["of_another_shape"]
    assert differing == ["shop.acct", "shop.item", "shop.part"]
    shapes = read_newest(shop.ctx, shop.bounds).shapes
    assert [f"{db}.{name}" for db, name in shapes.at_lo] == differing
    convert.run(shop.ctx, shop.bounds)
    _list_lineage(finalize.run(shop.ctx, shop.bounds).detail["lineage"]["wrote"])
    found = rows(mariadb, "SELECT new_id, id, user_id, name, note FROM shop.acct ORDER BY id")
    numbers = {id_: new_id for new_id, id_, *_ in found}
    assert [tuple(rest) for _, *rest in found] == [
        (1, 10, "changed", "note 1"), (2, 30, "a", "note 2"), (3, 20, "a", "note 3"), (4, 44, "a", "note 4"),
        (7, 70, "a", "note 7"), (8, 80, "n", "x"), (55, 50, "a", "note 5"),
    ]  # fmt: skip
    assert [numbers[id_] for id_ in (1, 2, 3, 4, 55, 7)] == [1, 2, 3, 4, 5, 7]
    assert numbers[8] > 7
    assert rows(mariadb, "SELECT id, code, n, stock, ref, CAST(price AS CHAR) FROM shop.item ORDER BY id") == [
        (1, "b", 1, 3, "ref 1", "1.1"), (2, "a", 2, 3, "ref 2", "2.1"), (5, "e", 5, 4, "ref 5", "5.1"),
        (6, "f", 6, 3, "ref 6", "6.1"), (7, "g", 7, 3, "ref 7", "7.1"), (9, "d", 9, 3, None, "0.5"),
        (34, "c", 3, 3, "ref 3", "3.1"),
    ]  # fmt: skip
    assert rows(mariadb, "SELECT id, b FROM shop.part ORDER BY id LIMIT 2") == [(1, 100), (2, 2)]
    _run_preflight(shop, mariadb, tmp_path, capsys)


def _list_lineage(wrote: list[dict[str, Any]]) -> None:
    """Each table with its columns after the window's DDL, the copied columns, and the source's columns."""
    found = {
        one["table"]: ([name for name, _ in one["columns"]], one["copied"], [len(s["columns"]) for s in one["sources"]])
        for one in wrote
    }
    assert found == {
        "acct": (["id", "user_id", "name", "new_id", "note"], ["id", "user_id", "name"], [3]),
        "item": (["id", "code", "n", "stock", "ref", "price"], ["id", "code", "n", "stock"], [4]),
        "part": (["id", "b"], ["id", "b"], [3]),
    }


def _run_preflight(shop: Shop, server: MariaDb, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the command on the same lake and target."""
    execute(server, "ALTER TABLE shop.item DROP COLUMN price")
    execute(server, "CREATE TRIGGER shop.told AFTER UPDATE ON shop.item FOR EACH ROW SET @told = 1")
    file = folder / "demo.toml"
    target = "\n".join(f"{key} = {json.dumps(value)}" for key, value in shop.config.items() if key != "tables")
    text_of = f'name = "demo"\n[lake]\npath = "{folder / "lake"}"\n[source]\ncluster-id = "7"\n[target]\n{target}\n'
    file.write_text(text_of + '[[target.tables]]\ndb-name = "shop"\ntbl-name = "acct"\npreserve = true\n')
    capsys.readouterr()
    assert main(["preflight", "--replication", str(file), "--output", "json"]) == 1
    found = {report["table"]: report for report in json.loads(capsys.readouterr().out)}
    assert {name: report["verdict"] for name, report in found.items()} == {
        "acct": "preserve", "item": "refused", "part": "partial",
    }  # fmt: skip
    assert (found["acct"]["own"], found["part"]["left_out"]) == (["new_id", "note"], ["c"])
    assert found["item"]["refusals"] == ["column ref is the target's own", "unique key (ref) is the target's own"]
    assert "preserve = true" in found["item"]["ways"][0]
    assert "trigger told (AFTER UPDATE) fires" in found["item"]["warnings"][0]
    file.write_text(text_of + '[[target.tables]]\ndb-name = "shop"\ntbl-name = "~."\npreserve = true\n')
    assert main(["preflight", "--replication", str(file)]) == 0
    assert "2 preserve" in capsys.readouterr().out


def test_mode_ordered_in_safe_mode_refuses_to_overwrite_extra_columns() -> None:
    # a clear error with remedies
    plain = table("t", col("id", not_null=True), keys=(primary("id"),))
    require_nothing_kept([plain])
    with pytest.raises(ConfigError, match=r"table=d\.t columns=note.*atomic, parallel or auto"):
        require_nothing_kept([TableShape(("note",), ("note",)).apply_to(plain)])
    assert build_expected_form(TableShape(("Note",), ()).apply_to(plain), "mariadb").own == {"note"}
