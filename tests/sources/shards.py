"""Two tables of one shape in two databases that become one at the target; DDL comes to each in its own time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

Placed = tuple[int, str]
"""A statement, and which shard it is for."""
_MOST_AHEAD = 2
"""DDL by which a shard is ahead of the other at most."""

_WIDER = {
    "INT DEFAULT 7": "BIGINT DEFAULT 7", "VARCHAR(9) NOT NULL DEFAULT 'ä'": "VARCHAR(30) NOT NULL DEFAULT 'ä'",
    "DATETIME(3)": "", "DECIMAL(9,2) NOT NULL DEFAULT 1.10": "DECIMAL(12,2) NOT NULL DEFAULT 1.10",
}  # fmt: skip
"""Definitions of columns that shards get, and wider ones that a MODIFY gives them. A column with more digits is not
wider: its values have other texts, so both shards have no joined definition."""


class Shards:
    """The tables `shard` of the databases DB and DB_b, of which the target has one: DB.shards.

    The shards may be at two sources. One has even ids, the other odd ones. Both run the same DDL in the same order, if
    they `may_alter`: a full load of unlike shards is refused, except in the mode optimistic. A MODIFY needs a mode
    (`may_modify`): without one, shards may differ in added columns only, so one that drops a column waits.
    """

    def __init__(self, draw: Random, db: str) -> None:
        self.db, self.target = db, "shards"
        self.tables = (f"{db}.shard", f"{db}_b.shard")
        self._texts = draw.random() < 0.5
        self._statements = list[str]()  # the DDL so far; a shard has run the first ones
        self._ran = [0, 0]
        self._added = dict[str, str]()  # the columns added and not dropped so far, with their types
        self.may_alter = self.may_modify = False

    def build_routes(self) -> list[Mapping[str, str]]:
        """The sections `routes` of the replication that merge both."""
        return [
            {"schema-pattern": table.split(".")[0], "table-pattern": "shard", "target-schema": self.db,
             "target-table": self.target}
            for table in self.tables
        ]  # fmt: skip

    def create(self) -> list[Placed]:
        """The statements that create both tables, with rows."""
        key = "id VARCHAR(9) CHARACTER SET latin1" if self._texts else "id INT"
        return [(1, f"CREATE DATABASE {self.db}_b CHARACTER SET utf8mb4")] + [
            (place, statement)
            for place, table in enumerate(self.tables)
            for statement in (
                f"CREATE TABLE {table} ({key} PRIMARY KEY, v INT)",
                f"INSERT INTO {table} (id, v) VALUES ({self._key(place, 0)}, 0), ({self._key(place, 9)}, 9)",
            )
        ]

    def draw_next(self, draw: Random) -> Sequence[Placed]:
        """Rows of one shard, or its next DDL."""
        place = draw.randrange(2)
        table = self.tables[place]
        if self.may_alter and draw.random() < 0.35 and self._may_go_on(place):
            return [(place, self._alter(place, draw))]
        keys = [self._key(place, draw.randrange(12)) for _ in range(3)]
        return [
            (place, f"REPLACE INTO {table} (id, v) VALUES ({keys[0]}, {draw.randrange(99)}), ({keys[1]}, 1)"),
            (place, draw.choice([
                f"DELETE FROM {table} WHERE id = {keys[2]}", f"UPDATE {table} SET v = v + 1 WHERE id <> {keys[2]}",
            ])),
        ]  # fmt: skip

    def finish(self) -> list[Placed]:
        """The DDL that the shard which is behind lacks."""
        lacking = [
            (place, statement.format(table=table))
            for place, (table, ran) in enumerate(zip(self.tables, self._ran, strict=True))
            for statement in self._statements[ran:]
        ]
        self._ran = [len(self._statements)] * 2
        return lacking

    def _may_go_on(self, place: int) -> bool:
        ahead = self._statements[self._ran[1 - place] : self._ran[place]]
        drops = any(" DROP COLUMN " in statement for statement in ahead)
        return len(ahead) < _MOST_AHEAD and (self.may_modify or not drops)

    def _alter(self, place: int, draw: Random) -> str:
        if self._ran[place] == len(self._statements):
            self._statements.append(self._draw_alter(draw))
        statement = self._statements[self._ran[place]]
        self._ran[place] += 1
        return statement.format(table=self.tables[place])

    def _draw_alter(self, draw: Random) -> str:
        number = len(self._statements)
        if self._added and (self.may_modify or self._ran[0] == self._ran[1]) and draw.random() < 0.3:
            name = draw.choice(list(self._added))
            if self.may_modify and draw.random() < 0.5 and (kind := _WIDER.get(self._added[name])):
                self._added[name] = kind
                return f"ALTER TABLE {{table}} MODIFY COLUMN {name} {kind}"
            del self._added[name]
            return f"ALTER TABLE {{table}} DROP COLUMN {name}"
        if draw.random() < 0.2:
            return f"ALTER TABLE {{table}} ADD INDEX i{number} (v)"
        kind = self._added[f"c{number}"] = draw.choice(list(_WIDER))
        return f"ALTER TABLE {{table}} ADD COLUMN c{number} {kind}"

    def _key(self, place: int, number: int) -> str:
        return f"'é{number * 2 + place}'" if self._texts else str(number * 2 + place)
