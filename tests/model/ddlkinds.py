"""Random DDL of every kind on a `World`: names in any letter case, sessions of any zone, rows between the steps.

The steps of a DDL, and what writers see at each, are TiDB's (captures `zones`, `zones_unique`, `ddl`): a unique key is
enforced until its DROP is delete-only; a dropped partition's rows are gone from the first step on; what an ALTER of
several clauses adds or converts is public for all writers while its DROP clauses take three more versions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import ddltypes as kinds
from ddlclauses import COLUMNS, MAKERS, TABLES, Clause, Clauses, Features
from ddlexchange import exchange
from ddlreorganize import reorganize
from ddltables import Column, Key, Live, Part, View, part_sql
from ddlworld import FILTERED, ZONES, Ddl, Renames, Step, World, seconds_of

from binlake.rows.schema import Action, DbInfo

_BOUNDS = (2, 4, 8)
_DAYS = ("2021-01-01 00:00:00", "2021-03-01 00:00:00", "2021-07-16 00:00:00")


@dataclass
class Draw(Clauses):
    """Draws random DDL on `world`."""

    # -- databases and tables --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the databases and a table."""
        for name in (self.random.choice(("App", "app", "LADEN") if self.features.case else ("app",)), FILTERED):
            self.world.create_database(name, f"CREATE DATABASE `{name}`")
        self.create()

    @property
    def _own(self) -> DbInfo:
        return next(db for db in self.world.databases if db.name.lower() != FILTERED)

    def create(self, shape: str = "") -> None:
        """CREATE TABLE under a free name, of any `shape`."""
        name = self._free_name(self._own)
        if name is None:
            return
        view = self._new_view(name, shape)
        live = Live(view)
        self.world.tables.append(live)
        self.world.version += 1
        where = f"`{name}`" if self.random.random() < 0.6 else f"{self.spelt(view.db.name)}.`{name}`"
        self.world.log(self._log(Action.CREATE_TABLE, f"CREATE TABLE {where} {view.create_sql()}", view))

    def _new_view(self, name: str, wanted: str = "") -> View:
        number = Column(next(self.world.ids), "Id", kinds.INT, not_null=True)
        columns = [number, *(self._column(name) for name in self.random.sample(COLUMNS, self.random.randint(1, 3)))]
        shape = self.random.choice(("primary", "primary", "primary", "unique", "keyless", "parted", "parted"))
        shape = wanted or shape
        if shape == "parted" and self.features.partitions:
            return self._parted(name, columns)
        view = View(self._own, name, next(self.world.ids), tuple(columns))
        if shape == "primary":
            view = replace(view, keys=(Key(next(self.world.ids), "PRIMARY", (number.id,), True, primary=True),))
        elif shape == "unique":
            view = replace(view, keys=(Key(next(self.world.ids), "own_key", (number.id,), True),))
        return view

    def _parted(self, name: str, columns: list[Column]) -> View:
        moments = self.features.zones and self.random.random() < 0.6
        by = Column(next(self.world.ids), "Day", kinds.BESIDE if moments else kinds.INT, not_null=True)
        columns.insert(1, by)
        bounds: list[tuple[int | None, str]] = [(bound, str(bound)) for bound in _BOUNDS[: self.random.randint(2, 3)]]
        if moments:
            zone = ZONES[self.told_zone][0]
            bounds = [(seconds_of(kinds.utc(day, zone)), f"UNIX_TIMESTAMP(_UTF8MB4'{day}')") for day in _DAYS]
        if self.random.random() < 0.7:
            bounds.append((None, "(MAXVALUE)" if moments else "MAXVALUE"))
        parts = tuple(Part(next(self.world.ids), f"P{n}", *bound) for n, bound in enumerate(bounds))
        key = Key(next(self.world.ids), "PRIMARY", (columns[0].id, by.id), True, primary=True)
        return View(self._own, name, next(self.world.ids), tuple(columns), (key,), parts, by.id, moments)

    def drop(self, live: Live) -> None:
        """DROP TABLE, with or without IF EXISTS; the name is reused now and then."""
        view = live.view
        self.world.tables.remove(live)
        self.world.version += 3
        exists = self.random.choice(("", "IF EXISTS "))
        self.world.log(self._log(Action.DROP_TABLE, f"DROP TABLE {exists}{self.table(view)}", view))
        if self.random.random() < 0.6:
            self.create()

    def truncate(self, live: Live) -> None:
        """TRUNCATE TABLE: a new table id."""
        old = live.view
        parts = tuple(replace(part, id=next(self.world.ids)) for part in old.parts)
        new = replace(old, id=next(self.world.ids), parts=parts)
        ddl = self._log(Action.TRUNCATE_TABLE, f"TRUNCATE TABLE {self.table(old)}", new, table_id=old.id)
        self.world.run(live, ddl, [Step(new, lambda one: one.lines.clear())])

    def rename(self, live: Live) -> None:
        """RENAME TABLE to a free name or to its own name in another letter case, sometimes by ALTER."""
        view = live.view
        free = self._free_name(view.db)
        name = view.name.swapcase() if self.features.case and self.random.random() < 0.2 else free
        if name is None:
            return
        new = replace(view, name=name)
        text = f"ALTER TABLE {self.table(view)} RENAME AS" if self.random.random() < 0.3 else None
        text = text or f"RENAME TABLE {self.table(view)} TO"
        where = f"`{name}`" if "." not in text else f"{self.spelt(view.db.name)}.`{name}`"
        self.world.run(live, self._log(Action.RENAME_TABLE, f"{text} {where}", new), [Step(new)])

    def swap(self, live: Live) -> None:
        """RENAME TABLE a TO tmp, b TO a, tmp TO b."""
        others = [one for one in self.world.tables if one is not live and one.view.db.id == live.view.db.id]
        if not others:
            return
        other = self.random.choice(others)
        one, two = live.view, other.view
        new = replace(one, name=two.name), replace(two, name=one.name)
        text = f"RENAME TABLE {self.spelt(one.name)} TO `swapping`, {self.spelt(two.name)} TO `{one.name}`, "
        text += f"`swapping` TO `{two.name}`"
        live.view, other.view = new
        self.world.version += 1
        self.world.log(self._log(Action.RENAME_TABLES, text, new[0], many=(new[0], new[1], new[0])))

    def rotate(self, live: Live) -> None:
        """RENAME out of the filter; the name is then reused, unless the table stays at the target."""
        view = live.view
        other = next(db for db in self.world.databases if db.name.lower() == FILTERED)
        new = replace(view, db=other, name=f"{view.name}_{self.world.version}")
        text = f"RENAME TABLE {self.spelt(view.db.name)}.{self.spelt(view.name)} TO {self.spelt(FILTERED)}.`{new.name}`"
        self.world.leave(live)
        self.world.run(live, self._log(Action.RENAME_TABLE, text, new), [Step(new)])
        if self.world.keeps:
            return  # the name is not free at the target
        fresh = self._new_view(view.name)
        self.world.tables.append(Live(fresh))
        self.world.version += 1
        self.world.log(self._log(Action.CREATE_TABLE, f"CREATE TABLE `{view.name}` {fresh.create_sql()}", fresh))

    def bring_back(self, _: Live) -> None:
        """RENAME into the filter of a table that rows and DDL changed outside; the first one is created there."""
        if not self.world.outside:
            view = replace(self._new_view(self.random.choice(TABLES)), db=self.world.databases[-1])
            self.world.outside.append(Live(view))
            self.world.version += 1
            where = f"{self.spelt(FILTERED)}.`{view.name}`"
            self.world.log(self._log(Action.CREATE_TABLE, f"CREATE TABLE {where} {view.create_sql()}", view))
        live = self.random.choice(self.world.outside)
        for _ in range(3):
            self.world.transaction(live)
        if self.random.random() < 0.4:
            self.add_column(live)
        old = live.view
        stayed = [name for name in TABLES if self.world.renames.shown(self._own.name, name) in self.world.left]
        here = {one.view.name.lower() for one in self.world.tables}
        free = [name for name in (self._free_name(self._own), *stayed) if name is not None and name.lower() not in here]
        if not free:
            return
        new = replace(old, db=self._own, name=self.random.choice(free))
        text = f"RENAME TABLE {self.spelt(FILTERED)}.{self.spelt(old.name)} TO {self.spelt(new.db.name)}.`{new.name}`"
        self.world.take_in(live, self._log(Action.RENAME_TABLE, text, new), new)

    # -- columns ---------------------------------------------------------------------------------------------------

    def add_column(self, live: Live) -> None:
        """ADD COLUMN, one or two of them in parentheses."""
        clauses = [clause for _ in range(2) if (clause := self._adding(live, last=True))]
        if len(clauses) == 2 and not clauses[0].touches & clauses[1].touches and self.random.random() < 0.4:
            self._run_clauses(live, clauses, "ADD COLUMN (" + ", ".join(clause.text[11:] for clause in clauses) + ")")
        elif clause := self._adding(live):
            self._run_alone(live, clause, Action.ADD_COLUMN, before=2)

    def drop_column(self, live: Live) -> None:
        """DROP COLUMN of no key."""
        if clause := self._dropping(live):
            self._run_alone(live, clause, Action.DROP_COLUMN)

    def modify(self, live: Live) -> None:
        """MODIFY COLUMN with a conversion, or CHANGE to another name."""
        if clause := self._modifying(live):
            before = 0 if clause.plain else 3
            self._run_alone(live, clause, Action.MODIFY_COLUMN, before=before, zone=clause.zone)

    def refused(self, live: Live) -> None:
        """A MODIFY that some value prevents: the job is rolled back after a few versions."""
        view = live.view
        texts = [c for c in view.columns if c.type == kinds.TEXT and c.id not in view.keyed]
        if texts:
            text = f"ALTER TABLE {self.table(view)} MODIFY COLUMN {self.spelt(texts[0].name)} INT"
            self.world.rolled_back(live, self._log(Action.MODIFY_COLUMN, text, view, self.zone(told=True)), 4)

    # -- keys ------------------------------------------------------------------------------------------------------

    def add_key(self, live: Live) -> None:
        """ADD INDEX or ADD UNIQUE, if no two rows prevent it."""
        if clause := self._indexing(live):
            self._run_alone(live, clause, Action.ADD_INDEX, before=3, zone=self.zone(told=True))

    def drop_key(self, live: Live) -> None:
        """DROP INDEX; of a unique one, duplicates are written before its binlog."""
        if clause := self._unindexing(live):
            self._run_alone(live, clause, Action.DROP_INDEX)

    # -- many clauses ----------------------------------------------------------------------------------------------

    def many(self, live: Live) -> None:
        """An ALTER of two or three clauses of different kinds."""
        makers = self.random.sample(MAKERS, self.random.choice((2, 2, 3)))
        clauses: list[Clause] = []
        named: set[str] = set()
        for maker in makers:
            clause = maker(self, live)
            if clause is not None and not clause.touches & named:
                clauses.append(clause)
                named |= clause.touches
        if len(clauses) > 1:
            self._run_clauses(live, clauses, ", ".join(clause.text for clause in clauses))

    # -- partitions ------------------------------------------------------------------------------------------------

    def drop_partition(self, live: Live) -> None:
        """DROP PARTITION: its rows are gone two versions before the binlog, and writers continue."""
        view = live.view
        if len(view.parts) < 2:
            return
        part = self.random.choice(view.parts)
        new = replace(view, parts=tuple(one for one in view.parts if one != part))
        text = f"ALTER TABLE {self.table(view)} DROP PARTITION {self.spelt(part.name)}"
        steps = [Step(new, lambda one: _without_part(one, part)), Step(new), Step(new)]
        self._run(live, self._log(Action.DROP_PARTITION, text, new), steps if self.features.ahead else steps[:1])

    def truncate_partition(self, live: Live) -> None:
        """TRUNCATE PARTITION: a new partition id."""
        view = live.view
        if not view.parts:
            return
        part = self.random.choice(view.parts)
        fresh = replace(part, id=next(self.world.ids))
        new = replace(view, parts=tuple(fresh if one == part else one for one in view.parts))
        text = f"ALTER TABLE {self.table(view)} TRUNCATE PARTITION {self.spelt(part.name)}"
        self.world.run(live, self._log(Action.TRUNCATE_PARTITION, text, new),
                       [Step(new, lambda one: _without_part(one, part))])  # fmt: skip

    def add_partition(self, live: Live) -> None:
        """ADD PARTITION after the last one."""
        view = live.view
        if not view.parts or view.moments or view.parts[-1].bound is None:
            return
        bound = view.parts[-1].bound + 5
        part = Part(next(self.world.ids), f"P_{bound}", bound, str(bound))
        new = replace(view, parts=(*view.parts, part))
        text = f"ALTER TABLE {self.table(view)} ADD PARTITION ({part_sql(part)})"
        self.world.run(live, self._log(Action.ADD_PARTITION, text, new), [Step(new)])

    def exchange(self, _: Live) -> None:
        """EXCHANGE PARTITION with a plain table of the same columns."""
        exchange(self)

    def reorganize(self, _: Live) -> None:
        """REORGANIZE PARTITION: two partitions from one, one from two, or the last one replaced by a wider one."""
        reorganize(self)

    # -- the DDL worker's steps ------------------------------------------------------------------------------------

    def _run(self, live: Live, ddl: Ddl, steps: list[Step], *, ahead_of_binlog: bool = False) -> None:
        self.world.run(live, ddl, steps, ahead_of_binlog=ahead_of_binlog and self.features.ahead)

    def _run_alone(self, live: Live, clause: Clause, action: Action, before: int = 0, zone: str = "") -> None:
        view = live.view
        final = clause.change(view)
        steps = [*itertools.repeat(Step(clause.during(view)), before)]
        if clause.drops:
            steps += self._drop_steps([clause], view, final)
        else:
            steps.append(Step(final, clause.rows))
        text = f"ALTER TABLE {self.table(view)} {clause.text}"
        self._run(live, self._log(action, text, final, zone), steps if self.features.ahead else steps[-1:])

    def _run_clauses(self, live: Live, clauses: list[Clause], text: str) -> None:
        view = live.view
        during, public, final = view, view, view
        for clause in clauses:
            during = clause.during(during)
            public = public if clause.drops else clause.change(public)
            final = clause.change(final)
        drops = [clause for clause in clauses if clause.drops]
        # A dropped column is write-only as soon as the others are public: no reader sees it.
        shown = public
        for clause in drops:
            shown = shown if clause.drops_key else clause.change(shown)

        def effect(one: Live) -> None:
            for clause in clauses:
                if clause.rows is not None:
                    clause.rows(one)

        zone = next((clause.zone for clause in clauses if clause.zone), self.told_zone)
        steps = [*itertools.repeat(Step(during), 3), Step(shown, effect)]
        for n, _ in enumerate(drops):
            left = final if n == len(drops) - 1 else shown
            steps += [Step(_unenforced(shown, drops[: n + 1])), Step(_unenforced(shown, drops[: n + 1])), Step(left)]
            shown = _unenforced(shown, drops[: n + 1])
        ddl = self._log(Action.MULTI_SCHEMA_CHANGE, f"ALTER TABLE {self.table(view)} {text}", final, zone)
        if not self.features.ahead:
            steps = [Step(final, effect)]
        self._run(live, ddl, steps, ahead_of_binlog=True)

    def _drop_steps(self, clauses: list[Clause], view: View, final: View) -> list[Step]:
        first = view if clauses[0].drops_key else final
        free = _unenforced(first, clauses)
        return [Step(first), Step(free), Step(free), Step(final)]


def _unenforced(view: View, drops: list[Clause]) -> View:
    gone = {clause.drops_key.id for clause in drops if clause.drops_key}
    return replace(view, keys=tuple(replace(k, enforced=False) if k.id in gone else k for k in view.keys))


def _without_part(live: Live, part: Part) -> None:
    live.lines[:] = [line for line in live.lines if line.part != part.id]


_KINDS: tuple[tuple[Callable[[Draw, Live], None], int, str], ...] = (
    (Draw.drop, 2, ""), (Draw.truncate, 2, ""), (Draw.rename, 2, ""), (Draw.swap, 1, ""), (Draw.rotate, 1, "renames"),
    (Draw.bring_back, 5, "returns"), (Draw.exchange, 6, "exchanges"),
    (Draw.reorganize, 6, "reorganizes"),
    (Draw.add_column, 4, ""), (Draw.drop_column, 3, ""), (Draw.modify, 5, ""), (Draw.refused, 1, "ahead"),
    (Draw.add_key, 3, ""), (Draw.drop_key, 3, ""), (Draw.many, 5, ""), (Draw.drop_partition, 3, "partitions"),
    (Draw.truncate_partition, 2, "partitions"), (Draw.add_partition, 1, "partitions"),
)  # fmt: skip


def alter(draw: Draw) -> None:
    """A random DDL on a random table, or a new table."""
    if not draw.world.tables or draw.random.random() < 0.15:
        draw.create()
        return
    fit = [kind for kind in _KINDS if not kind[2] or getattr(draw.features, kind[2])]
    (make,) = draw.random.choices([kind[0] for kind in fit], [kind[1] for kind in fit])
    make(draw, draw.random.choice(draw.world.tables))


def _separate_random(random: Random, salt: int = 0) -> Random:
    """A separate random source, so that drawing from it does not change the rest of a seed; each `salt` has its own."""
    found = Random()
    found.setstate(random.getstate())
    found.seed(found.random() + salt)
    return found


def _renames(random: Random) -> Renames:
    """Routes for every third seed."""
    own = _separate_random(random)
    if own.random() > 0.34:
        return Renames()
    tables = {name.lower(): f"To_{name}" for name in own.sample(TABLES, own.choice((0, 1, 2)))}
    return Renames("Elsewhere" if not tables or own.random() < 0.5 else "", tables)


def world_of(random: Random, features: Features, ddls: int = 9, transactions: int = 12) -> World:
    """A source with about `ddls` DDL and `transactions` between them."""
    world = World(random)
    if features.told:
        world.told_zone = random.choice(tuple(ZONES))
    if features.routes:
        world.renames = _renames(random)
    world.keeps = features.keeps and _separate_random(random).randint(1, 10) % 3 == 0
    for salt, kind in enumerate(("returns", "exchanges", "reorganizes"), 1):
        wanted = getattr(features, kind) and _separate_random(random, salt).random() < 0.25
        features = replace(features, **{kind: wanted})
    draw = Draw(world, random, features, world.told_zone)
    draw.begin()
    for _ in range(ddls):
        for _ in range(min(int(random.expovariate(ddls / transactions)), 4)):
            world.transaction()
        alter(draw)
    world.transaction()
    return world
