"""Random windows and damage at the target: validation names the damaged rows that a window touched, and no other."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.examples import spread
from support.shop import HOSTILE, ODD, Shop, types_row
from support.watched import Watched

from binlake.changes.net import encode_row_key
from binlake.extras.validation.ledger import ValidationLedger

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

TABLES = ("item", "ci", "pair", "types", ODD)
Found = set[tuple[str, str, str]]
"""(table, key, kind)."""


class World:
    """Changes rows at random, and damages the target's."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self.draw, self.watched, self.shop = random.Random(seed), Watched(shop), shop
        self.next = 20_000

    def change(self) -> None:
        table, w = self.draw.choice(TABLES), self.shop.workload
        rows = self.shop.rows(table)
        kind = self.draw.choice(["insert", "update", "update", "move", "delete", "again"])
        if kind == "insert" or not rows:
            w.begin().insert("shop", table, **self._new(table)).commit()
            return
        row = dict(self.draw.choice(rows))
        if kind == "update":
            _, *others = self._columns(table)
            new = self._new(table)
            w.begin().update("shop", table, row, **{name: new[name] for name in others if name in new}).commit()
        elif kind == "move":
            # A text key: sometimes one that its collation considers equal.
            new, key = self._new(table), self._columns(table)[0]
            new[key] = str(row[key]).swapcase() if table == "ci" and self.draw.random() < 0.5 else new[key]
            if new[key] not in {row[key] for row in rows}:
                w.begin().update("shop", table, row, **{key: new[key]}).commit()
        else:
            w.begin().delete("shop", table, **row).commit()
            if kind == "again":
                w.begin().insert("shop", table, **row).commit()

    def damage(self) -> dict[str, list[dict[str, str | None]]]:
        """The target's rows: those of the source, except a few that are deleted, changed, swapped or restored."""
        there = {name: [dict(row) for row in self.shop.rows(name)] for name in TABLES}
        for _ in range(self.draw.randint(2, 9)):
            table = self.draw.choice(TABLES)
            rows, key, last = there[table], self._columns(table)[0], self._columns(table)[-1]
            kind = self.draw.choice(["missing", "different", "swapped", "extra"])
            if kind == "extra":
                extra = {
                    **{name: None for name in self._columns(table)},
                    **{k: _text(v) for k, v in self._new(table).items()},
                }
                gone = [key for key in self.touched if key[0] == table and not self._has(rows, table, key[1])]
                if table == "item" and gone:
                    extra[key] = self.draw.choice(gone)[1][2:-2]
                rows.append(extra)
            elif kind == "missing" and rows:
                rows.remove(self.draw.choice(rows))
            elif kind == "different" and rows:
                row = self.draw.choice(rows)
                row[last] = {"n": "4711", "doc": '{"spoilt": 1}'}.get(last, "spoilt")
                if table == "types":
                    name, value = self.draw.choice(
                        [column for column in types_row(self.draw, 1).items() if column[0] != "id"]
                    )
                    row[name] = _text(value)
            elif len(rows) > 1:
                one, other = self.draw.sample(rows, 2)
                one[last], other[last] = other[last], one[last]
        return there

    def window(self, changes: int) -> None:
        lo = self.watched.lake.hi
        for _ in range(changes):
            self.change()
        self.watched.apply()
        versions = self.shop.changes(lo, self.watched.lake.hi)
        texts = {(change.table, key) for change in versions for key in (change.key, change.new_key) if key}
        self.touched = {key for key in texts if key[0] in TABLES}

    def wrong(self, there: dict[str, list[dict[str, str | None]]]) -> Found:
        """All differences, computed by the model."""
        differences = {name: self.shop._find_differences(name, rows) for name, rows in there.items()}
        return {(name, key, kind) for name, keys in differences.items() for key, kind in keys}

    def named(self) -> Found:
        return {
            (entry.table, entry.key, entry.kind)
            for entry in ValidationLedger(self.watched.lake.paths).list_entries(("new",))
        }

    def _columns(self, table: str) -> list[str]:
        return [column.name for column in self.shop.workload.table("shop", table).row_columns]

    def _has(self, rows: list[dict[str, str | None]], table: str, key: str) -> bool:
        columns = self.shop.workload.table("shop", table).find_identity().columns
        return any(encode_row_key(row, columns) == key for row in rows)

    def _new(self, table: str) -> dict[str, object]:
        self.next += 1
        key, draw = self.next, self.draw
        if table == "types":
            return types_row(draw, key)
        made: dict[str, dict[str, object]] = {
            "item": {"id": key, "name": f"item {key}", "n": draw.randint(0, 9)},
            "ci": {"k": f"b-Side {key}", "n": draw.randint(0, 9)},
            "pair": {"n": key, "code": draw.randbytes(5).hex().upper(), "v": draw.choice(HOSTILE)},
            ODD: {"k%'": f"{draw.choice(HOSTILE)[:20]} {key}", 'v"': draw.choice(HOSTILE)},
        }
        return made[table]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


@pytest.fixture
def drawn(first_shop: Shop, tmp_path: Path) -> Callable[[int], None]:
    def run(seed: int) -> None:
        world = World(first_shop.copy(tmp_path / str(seed)), seed)
        for _ in range(2):
            world.window(25)
            before = {(table, key) for table, key, _ in world.named()}
            there = world.damage()
            world.shop.refill(there)
            done = world.watched.run()
            # Rows that were wrong before are compared again, wherever they are.
            expected = {difference for difference in world.wrong(there) if difference[:2] in world.touched | before}
            assert world.named() == expected, seed
            assert (done.state, done.compared) == ("done", len(world.touched | before)), seed
        world.shop.refill()
        assert (world.watched.run().errors, world.named()) == (0, set())

    return run


@pytest.mark.parametrize("seed", spread(range(4), least=1))
def test_each_damaged_row_that_a_window_touched_is_named_and_no_other(drawn: Callable[[int], None], seed: int) -> None:
    # U-18 R-13 R-44
    drawn(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_damages(drawn: Callable[[int], None], seed: int) -> None:
    drawn(seed)
