"""Words, columns and clauses of random DDL: names in any letter case, and the effect of each clause on a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import ddltypes as kinds
from ddltables import Column, Key, Live, View
from ddltypes import Convert, Type
from ddlworld import ZONES, Ddl, World, values_of

from binlake.rows.schema import Action, DbInfo

TABLES = ("Users", "orders", "LOG", "Half_Done")
COLUMNS = ("Note", "v", "AMOUNT", "at", "x y")


@dataclass
class Clause:
    """A clause of ALTER: its text, the names that it touches, its effect on a view, and its effect on the rows."""

    text: str
    touches: set[str]
    change: Callable[[View], View]
    drops: bool = False
    plain: bool = False
    rows: Callable[[Live], None] | None = None
    zone: str = ""
    adds_key: Key | None = None
    drops_key: Key | None = None

    def during(self, view: View) -> View:
        """What writers see before the clause is public: a new unique key is enforced from its second step on."""
        key = self.adds_key
        return view if key is None or not key.unique else replace(view, keys=(*view.keys, replace(key, id=-key.id)))


@dataclass
class Features:
    """The special features that a seed may draw; a smaller set shows a failure more simply."""

    case: bool = True
    zones: bool = True
    ahead: bool = True
    partitions: bool = True
    conversions: bool = True
    renames: bool = True
    json_zero: bool = True
    told: bool = True
    engines: bool = True
    routes: bool = True
    keeps: bool = True
    returns: bool = True
    exchanges: bool = True
    reorganizes: bool = True


@dataclass
class Clauses:
    """Draws the clauses of DDL on `world`."""

    world: World
    random: Random
    features: Features = field(default_factory=Features)
    told_zone: str = "+00:00"
    """The zone of sessions whose jobs do not record it: a setting of the replication."""

    # -- words -----------------------------------------------------------------------------------------------------

    def spelt(self, name: str) -> str:
        """`name` in some letter case, quoted."""
        forms = (name, name, name.lower(), name.upper(), name.swapcase()) if self.features.case else (name,)
        return f"`{self.random.choice(forms)}`"

    def table(self, view: View) -> str:
        """A table's name as written in a statement, with or without its database."""
        own = self.spelt(view.name)
        return own if self.random.random() < 0.6 else f"{self.spelt(view.db.name)}.{own}"

    def zone(self, *, told: bool) -> str:
        """The zone of the session that runs a DDL; `told`: its job records it."""
        return self.random.choice(tuple(ZONES)) if told and self.features.zones else self.told_zone

    def _free_name(self, db: DbInfo) -> str | None:
        taken = {live.view.name.lower() for live in self.world.tables if live.view.db.id == db.id}
        taken |= {name.lower() for _, name in self.world.left}
        free = [name for name in TABLES if self.world.renames.shown("", name)[1].lower() not in taken]
        free = [name for name in free if name.lower() not in taken]
        return self.random.choice(free) if free else None

    def _log(self, action: Action, text: str, view: View, zone: str = "", **more: object) -> Ddl:
        return Ddl(action, text, view.db, view, zone=zone or self.told_zone, **more)  # type: ignore[arg-type]

    def _column(self, name: str, *, added: bool = False) -> Column:
        kind = kinds.JSON if added and self.random.random() < 0.15 else self.random.choice(kinds.TYPES)
        column = Column(next(self.world.ids), name, kind, self.random.random() < 0.4 and kind not in _NULLABLE)
        if kind in _NO_DEFAULT or self.random.random() < 0.4:
            if not added or not column.not_null:
                return column
            known = kind.zero is not None and (kind != kinds.JSON or self.features.json_zero)
            return replace(column, origin=kind.zero) if known else replace(column, not_null=False)
        text = self.random.choice(kind.values)
        shown = kinds.utc(text, ZONES[self.told_zone][0]) if kind in STAMPS else text
        literal = text if kind in _NUMBERS else "_UTF8MB4'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
        return replace(column, default=shown, origin=shown if added else None, literal=literal)

    # -- clauses of ALTER ------------------------------------------------------------------------------------------

    def _adding(self, live: Live, *, last: bool = False) -> Clause | None:
        taken = {column.name for column in live.view.columns}
        free = [name for name in (*COLUMNS, "more", "Fresh") if name not in taken]
        if not free:
            return None
        column = self._column(self.random.choice(free), added=True)
        place = self.random.choice(("", "", " FIRST", f" AFTER {self.spelt(live.view.columns[0].name)}"))
        place = "" if last else place
        at = {"": None, " FIRST": 0}.get(place, 1)
        beside = {live.view.columns[0].name} if place else set()

        def change(view: View) -> View:
            columns = list(view.columns)
            columns.insert(len(columns) if at is None else min(at, len(columns)), column)
            return replace(view, columns=tuple(columns))

        return Clause(f"ADD COLUMN {column.sql}{place}", {column.name, *beside}, change)

    def _dropping(self, live: Live) -> Clause | None:
        view = live.view
        free = [column for column in view.columns if column.id not in view.keyed]
        if len(free) < 2 or not view.keys:
            return None
        dropped = self.random.choice(free)
        return Clause(f"DROP COLUMN {self.spelt(dropped.name)}", {dropped.name, view.columns[0].name},
                      lambda one: one.without_column(dropped.id), drops=True)  # fmt: skip

    def _modifying(self, live: Live) -> Clause | None:
        view = live.view
        free = [column for column in view.columns if column.id not in view.keyed]
        pairs = [
            (c, new, how) for c in free for old, new, how in kinds.CONVERSIONS
            if old == c.type and (c.origin, new) != ("", kinds.INT)
            and (self.features.conversions or (old.sql, new.sql) in kinds.ONLY_DEFINITION)
        ]  # fmt: skip
        if not pairs:
            return None
        column, kind, how = self.random.choice(pairs)
        plain = (column.type.sql, kind.sql) in kinds.ONLY_DEFINITION
        zone = self.zone(told=True)
        fresh = column.id if plain else next(self.world.ids)
        name = column.name
        if self.random.random() < 0.2 and not any(one.name == f"{name}2" for one in view.columns):
            name = f"{name}2"
        new = Column(fresh, name, kind, column.not_null, origin=column.origin if plain else None)
        verb = (
            f"MODIFY COLUMN {new.sql}" if name == column.name else f"CHANGE COLUMN {self.spelt(column.name)} {new.sql}"
        )

        def change(one: View) -> View:
            return replace(one, columns=tuple(new if old.id == column.id else old for old in one.columns))

        return Clause(verb, {column.name, name}, change, plain=plain, zone=zone,
                      rows=None if plain else _converted(column, new, how, zone))  # fmt: skip

    def _indexing(self, live: Live) -> Clause | None:
        view = live.view
        fit = [c for c in view.columns if c.type in _KEYED and not view.parts]
        if not fit or len(view.keys) > 2:
            return None
        column = self.random.choice(fit)
        key = Key(next(self.world.ids), f"K{self.world.version}", (column.id,), self.random.random() < 0.7)
        values = [values_of(key, line.read(view)) for line in live.lines]
        held = [value for value in values if None not in value]
        if key.unique and len(held) != len(set(held)):
            return None
        word = "UNIQUE " if key.unique else "INDEX "
        return Clause(f"ADD {word}`{key.name}`(`{column.name}`)", {column.name, key.name},
                      lambda one: replace(one, keys=(*one.keys, key)), adds_key=key)  # fmt: skip

    def _unindexing(self, live: Live) -> Clause | None:
        view = live.view
        droppable = [key for key in view.keys if not key.primary]
        if not droppable:
            return None
        key = self.random.choice(droppable)
        names = {view.column(column).name for column in key.columns}
        return Clause(f"DROP INDEX {self.spelt(key.name)}", {key.name, *names},
                      lambda one: replace(one, keys=tuple(k for k in one.keys if k.id != key.id)),
                      drops=True, drops_key=key)  # fmt: skip


def _converted(old: Column, new: Column, how: Convert, zone: str) -> Callable[[Live], None]:
    def effect(live: Live) -> None:
        view = live.view
        after = replace(view, columns=tuple(new if one.id == old.id else one for one in view.columns))
        for line in live.lines:
            held = line.read(view)
            text = held.pop(old.id)
            line.stored = {**held, new.id: None if text is None else how(text, ZONES[zone][0])}
            line.written = after

    return effect


_NUMBERS = (kinds.INT, kinds.BIGINT, kinds.DECIMAL, kinds.FLOAT, kinds.DOUBLE, kinds.YEAR)
STAMPS = (kinds.TIMESTAMP, kinds.TIMESTAMP6)
_NO_DEFAULT: tuple[Type, ...] = (kinds.JSON, kinds.BIT, kinds.BYTES)
_NULLABLE: tuple[Type, ...] = STAMPS
_KEYED = (kinds.INT, kinds.BIGINT, kinds.TEXT)
MAKERS: tuple[Callable[[Clauses, Live], Clause | None], ...] = (
    Clauses._adding, Clauses._adding, Clauses._dropping, Clauses._dropping, Clauses._modifying, Clauses._indexing,
    Clauses._unindexing,
)  # fmt: skip
"""The clauses from which an ALTER with several clauses is drawn."""
