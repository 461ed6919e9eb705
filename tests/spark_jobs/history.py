"""A source history with everything that mirrors and audits must follow, and the model's state at every commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.mariadb import MariaDb, rows
from support.workload import Col, Row, Workload, integer, text

from binlake.rows.schema import mysqltypes as t

Tables = dict[tuple[str, str], list[Row]]


@dataclass
class History:
    """`cuts`: the ends of windows. `states`: (commit_ts, all tables) after every commit and DDL."""

    workload: Workload = field(default_factory=Workload)
    cuts: list[int] = field(default_factory=list)
    states: list[tuple[int, Tables]] = field(default_factory=list)

    def did(self, commit_ts: int) -> None:
        self.states.append((commit_ts, self.workload.states()))

    def cut(self) -> None:
        self.cuts.append(self.workload.clock())


def shop() -> History:
    """Two databases' worth of DML with DDL in between: three windows, the second of which holds six DDL on four
    tables.
    """
    h = History()
    w = h.workload
    w.create_database("shop")
    money = Col("price", t.DOUBLE, 22, -1)
    h.did(w.create_table("shop", "item", [integer("id"), text("name"), money], ["id"]))
    h.did(w.create_table("shop", "log", [text("what"), integer("n")]))
    for n in range(40):
        txn = w.begin().insert("shop", "item", id=n, name=f"item {n}", price=f"{n}.5")
        h.did(txn.insert("shop", "log", what="new", n=n % 4).commit())
    h.cut()
    first = dict(w.rows["shop", "item"][3])
    h.did(w.begin().update("shop", "item", first, price="99.99").delete("shop", "log", what="new", n=1).commit())
    h.did(w.add_column("shop", "item", integer("stock", default="5")))
    moved = dict(next(row for row in w.rows["shop", "item"] if row["id"] == "4"))
    h.did(w.begin().update("shop", "item", moved, id=4000, stock="1").insert("shop", "log", what="move", n=4).commit())
    h.did(w.drop_column("shop", "log", "n"))
    h.did(w.begin().delete("shop", "log", what="new").insert("shop", "log", what="new").commit())
    h.did(w.create_table("shop", "gone", [integer("id")], ["id"]))
    h.did(w.begin().insert("shop", "gone", id=1).commit())
    h.did(w.drop_table("shop", "gone"))
    h.did(w.create_table("shop", "temp", [integer("id"), text("name")], [], ["name"]))
    h.did(w.begin().insert("shop", "temp", id=1, name="a").insert("shop", "temp", id=2, name="b").commit())
    h.did(w.truncate("shop", "temp"))
    h.did(w.begin().insert("shop", "temp", id=3, name="a").commit())
    h.cut()
    for n in range(10, 20):
        h.did(
            w.begin()
            .delete("shop", "item", **w.rows["shop", "item"][0])
            .insert("shop", "log", what=f"x{n % 2}")
            .commit()
        )
    h.cut()
    return h


def pairs(h: History) -> None:
    """One more window: a composite key with a binary column; its row moves twice, and another row takes a key it
    left.
    """
    w = h.workload
    code = Col("code", t.VARCHAR, 16)
    h.did(w.create_table("shop", "pair", [integer("n"), code, text("name")], ["n", "code"]))
    h.did(w.begin().insert("shop", "pair", n=1, code="AB01", name="first").commit())
    for n in (2, 3):
        row = dict(w.rows["shop", "pair"][0])
        h.did(w.begin().update("shop", "pair", row, n=str(n)).commit())
    h.did(w.begin().insert("shop", "pair", n=1, code="AB01", name="second").commit())
    h.did(w.begin().delete("shop", "pair", n="3", code="AB01", name="first").commit())
    h.cut()


def plain(rows: list[Row]) -> list[list[tuple[str, str | None]]]:
    """Rows in an order that does not depend on their origin."""
    return sorted((sorted(row.items()) for row in rows), key=str)


def as_text(value: object) -> str | None:
    """A value in the form of the model."""
    return None if value is None else value.hex().upper() if isinstance(value, bytes) else str(value)


def shown(server: MariaDb) -> dict[tuple[str, str], Any]:
    """All rows of `shop` in the form of the model."""
    found = {}
    for (name,) in rows(server, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'"):
        columns = [column for (column, *_) in rows(server, f"SHOW COLUMNS FROM shop.`{name}`")]
        texts = ([as_text(v) for v in row] for row in rows(server, f"SELECT * FROM shop.`{name}`"))
        found["shop", name] = plain([dict(zip(columns, row, strict=True)) for row in texts])
    return found
