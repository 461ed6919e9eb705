"""A shop with one table of each kind that verify treats differently, its lake, and its target."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path

from support.mariadb import MariaDb, execute, rows
from support.tinylake import TinyLake, fill, put, set_checkpoint, target_config
from support.workload import Row, Workload, integer, text

from binlake.changes.net import encode_row_key
from binlake.lake.mutations import RowVersion, read_changes
from binlake.repair.verify import Verification
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.workload.spec import Col

HOSTILE = ["it's", 'a "b"', "back\\slash", "line\nend; -- x", "100 %s", "tab\t", "Straße 😀", "`t`", "x\0y", "a"]
ODD = "odd %s' \"t;"

TYPES = [
    integer("id"),
    Col("big", t.LONGLONG, 20, unsigned=True),
    Col("price", t.NEWDECIMAL, 20, 4),
    Col("f", t.FLOAT, 12, -1),
    Col("d", t.DOUBLE, 22, -1),
    Col("bin", t.VARSTRING, 20),
    Col("blob_", t.BLOB, -1),
    Col("body", t.BLOB, -1, charset="utf8mb4", collate="utf8mb4_bin"),
    Col("day", t.DATE, 10),
    Col("at", t.DATETIME, 23, 3),
    Col("stamp", t.TIMESTAMP, 26, 6),
    Col("span", t.DURATION, 13, 2),
    Col("y", t.YEAR, 4),
    Col("flags", t.BIT, 10),
    Col("kind", t.ENUM, -1, -1, charset="utf8mb4", collate="utf8mb4_bin", elems=("a", "b c")),
    Col("doc", t.JSON, -1, charset="binary"),
]


def types_row(chance: random.Random, key: int) -> dict[str, object]:
    """A row of shop.types; some columns NULL."""
    values: dict[str, object] = {
        "big": chance.getrandbits(64),
        "price": f"{chance.randint(-(10**9), 10**9)}.{chance.randint(0, 9999):04d}",
        "f": chance.choice(["0.1", "-3.25", "16777216", "1.17549e-38", "123456.79"]),
        "d": chance.choice(["0.1", "1e20", "3801906481570168.5", "-2.5", "1e-20"]).replace("3801906481570168.5", "0.3"),
        "bin": chance.randbytes(chance.randint(0, 20)).hex().upper(),
        "blob_": chance.randbytes(chance.randint(0, 300)).hex().upper(),
        "body": chance.choice(HOSTILE) * chance.randint(0, 40),
        "day": f"20{chance.randint(10, 29)}-0{chance.randint(1, 9)}-1{chance.randint(0, 9)}",
        "at": f"2026-11-21 0{chance.randint(0, 9)}:00:00.{chance.randint(0, 999):03d}",
        "stamp": f"2026-11-21 0{chance.randint(0, 9)}:00:00.{chance.randint(0, 999999):06d}",
        "span": f"-{chance.randint(100, 800)}:01:02.{chance.randint(0, 99):02d}",
        "y": str(chance.randint(1990, 2030)),
        "flags": f"{chance.randint(0, 1023):04X}",
        "kind": chance.choice(["a", "b c"]),
        "doc": chance.choice(['{"a": 1, "b": [true, null]}', '"it\'s"', "[]", '{"ü": "\\n"}']),
    }
    return {"id": key} | {name: None if chance.random() < 0.15 else value for name, value in values.items()}


class Shop:
    """The workload, its lake, and the rows that the target must have at the lake's end."""

    def __init__(self, root: Path, target: MariaDb) -> None:
        self.server = target
        self.chance = random.Random(1)
        self.workload = Workload()
        self.lake = TinyLake(root, self.workload, {"target": target_config(target, **{"txn-batch": 7})})
        self._tables()
        self._rows()
        self.ts = self.lake.land()

    def copy(self, root: Path, seed: int = 1, **config: object) -> Shop:
        """A copy of this shop with its own lake in `root`; the target is filled anew."""
        made = copy.copy(self)
        made.chance = random.Random(seed)
        made.workload = self.workload.copy()
        made.lake = self.lake.copy(root, made.workload, config)
        self.server.wipe()
        made.fill(self.server)
        set_checkpoint(self.server, self.ts)
        return made

    def fill(self, server: MariaDb) -> None:
        """Create the model's tables and rows on `server`."""
        fill(server, self.workload)
        execute(server, "ALTER TABLE shop.ci MODIFY k VARCHAR(40) COLLATE utf8mb4_general_ci NOT NULL")

    def _tables(self) -> None:
        w = self.workload
        w.create_database("shop")
        w.create_table("shop", "item", [integer("id"), text("name"), integer("n")], ["id"], ["name"])
        w.create_table("shop", ODD, [text("k%'", 40), text('v"')], ["k%'"])
        code = Col("code", t.VARSTRING, 16, not_null=True)
        w.create_table("shop", "pair", [integer("n"), code, text("v")], ["n", "code"])
        w.create_table("shop", "ci", [text("k", 40, collate="utf8mb4_general_ci"), integer("n")], ["k"])
        w.create_table("shop", "log", [text("line"), Col("f", t.FLOAT, 12, -1), integer("n")])
        w.create_table("shop", "types", TYPES, ["id"])
        w.create_table("shop", "real", [Col("d", t.DOUBLE, 22, -1), integer("n")])
        w.create_table("shop", "empty", [integer("id")], ["id"])

    def _rows(self) -> None:
        c, w = self.chance, self.workload
        for key in c.sample(range(-40, 1000), 60):
            w.begin().insert("shop", "item", id=key, name=f"item {key}", n=c.randint(0, 9)).commit()
        for hostile in HOSTILE:
            txn = w.begin().insert("shop", ODD, **{"k%'": hostile, 'v"': c.choice(HOSTILE)})
            txn.insert("shop", "ci", k=f"{hostile}!", n=c.randint(0, 9)).commit()
        for n in range(25):
            code = c.randbytes(c.randint(1, 8)).hex().upper()
            w.begin().insert("shop", "pair", n=n % 4, code=code, v=c.choice(HOSTILE)).commit()
            line = {"line": c.choice([None, *HOSTILE[:4]]), "f": c.choice([None, "0.1", "2.5"]), "n": n % 2}
            w.begin().insert("shop", "log", **line).insert("shop", "log", **line).commit()
            w.begin().insert("shop", "types", **types_row(c, n)).commit()

    def rows(self, table: str) -> list[Row]:
        """The model's rows."""
        return self.workload.rows["shop", table]

    def spoil(self, changes: int) -> dict[str, Counter[tuple[str, str]]]:
        """Make the target's rows differ from the model's; return (key, kind) of each difference by table."""
        spoilt = {name: [dict(row) for row in there] for (_, name), there in self.workload.rows.items()}
        for _ in range(changes):
            name = self.chance.choice([name for name, there in spoilt.items() if there])
            self._spoil(name, spoilt[name])
        self.spoilt = spoilt
        self.refill(spoilt)
        return {name: self._find_differences(name, there) for name, there in spoilt.items() if there != self.rows(name)}

    def refill(self, wanted: dict[str, list[Row]] | None = None) -> None:
        """Replace the target's rows by `wanted`, by default the model's rows."""
        wanted = {name: there for (_, name), there in self.workload.rows.items()} if wanted is None else wanted
        for name, there in wanted.items():
            execute(self.server, f"DELETE FROM shop.`{name}`")
            put(self.server, self.workload.table("shop", name), there)

    def changes(self, lo: int, hi: int) -> list[RowVersion]:
        """The row changes of the lake in (lo, hi]."""
        return read_changes(self.lake.paths, lo, hi)

    def _spoil(self, name: str, rows: list[Row]) -> None:
        table = self.workload.table("shop", name)
        first, last = table.find_identity().columns[0], table.row_columns[-1].name
        row = self.chance.choice(rows)
        kind = self.chance.choice(["missing", "extra", "different"])
        if kind == "missing":
            rows.remove(row)
        elif kind == "different":
            row[last] = self.chance.choice(["1", "0", None] if last == "n" else [None, '{"spoilt": 1}'])
        elif name == "log":
            rows.append(dict(row))
        else:
            extra = {**row, first: str(self.chance.randint(2000, 9999))}
            rows.append(extra | ({"name": None} if "name" in row else {}))

    def _find_differences(self, name: str, rows: list[Row]) -> Counter[tuple[str, str]]:
        columns = self.workload.table("shop", name).find_identity().columns
        mine, theirs = ([(encode_row_key(row, columns), row) for row in side] for side in (self.rows(name), rows))
        if name == "log":
            counts = Counter(key for key, _ in mine)
            counts.subtract(key for key, _ in theirs)
            return Counter({(key, "missing" if n > 0 else "extra"): abs(n) for key, n in counts.items() if n})
        one, other = dict(mine), dict(theirs)
        kinds = {key: "missing" if key not in other else "extra" if key not in one else "different"
                 for key in one.keys() | other.keys() if one.get(key) != other.get(key)}  # fmt: skip
        return Counter(kinds.items())

    def count_differences(self, verification: Verification) -> dict[str, Counter[tuple[str, str]]]:
        """The differences that verify listed, in the form of `spoil`."""
        told: dict[str, Counter[tuple[str, str]]] = {}
        for one in verification.differences:
            told.setdefault(one.table, Counter())[one.key, one.kind] += one.copies
        return told

    def read_rows(self, server: MariaDb | None = None) -> dict[str, Counter[str]]:
        """All rows of the target, or of `server`, read by plain SQL."""
        names = [name for _, name in self.workload.rows]
        return {name: Counter(map(str, rows(server or self.server, f"SELECT * FROM shop.`{name}`"))) for name in names}
