"""The shapes of a window's tables: as read at its lo, carried along by the window's own DDL (S4-22, S4-23).

A DDL runs on both sides, so what differs goes on differing: under a new name after a RENAME, under a new id after a
TRUNCATE. A table that the window itself drops and creates is made alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from binlake.downstream.shape import Name, TableShape
from binlake.schema import TableDef
from binlake.schema.delta import Definitions
from binlake.schema.names import fold_pair
from binlake.window.definitions import LandedDdl


@dataclass(frozen=True)
class Shapes:
    """Shapes at a window's lo by the target's name, for tables that have one."""

    at_lo: Mapping[Name, TableShape] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.at_lo)

    def base(self, table: TableDef) -> TableDef:
        """The definition at lo."""
        return _shaped(table, self._by_name().get(_name(table)))

    def follow(self, ddls: Iterable[LandedDdl]) -> tuple[LandedDdl, ...]:
        """The window's DDL in commit order, with the definitions that both sides share."""
        known = self._by_name()
        return tuple(_followed(ddl, known) for ddl in ddls)

    def to_list(self) -> list[Any]:
        """Plain values for JSON."""
        return [[db, table, shape.to_dict()] for (db, table), shape in self.at_lo.items()]

    @classmethod
    def from_list(cls, raw: Iterable[Any]) -> Shapes:
        """The shapes of `to_list`."""
        return cls({(db, table): TableShape.from_dict(shape) for db, table, shape in raw})

    def _by_name(self) -> dict[Name, TableShape]:
        return {fold_pair(name): shape for name, shape in self.at_lo.items()}


def _followed(ddl: LandedDdl, known: dict[Name, TableShape]) -> LandedDdl:
    """`ddl` shaped; `known`, the shapes by name, is moved behind it."""
    before = {_name(table): known.pop(_name(table), None) for table in ddl.before.tables}
    ids = {table.id: before[_name(table)] for table in ddl.before.tables}
    # By id first: a RENAME may swap two names. A TRUNCATE keeps the name only.
    after = {_name(t): ids[t.id] if t.id in ids else before.get(_name(t)) for t in ddl.after.tables}
    known.update({name: shape for name, shape in after.items() if shape is not None})
    return replace(ddl, before=_definitions(ddl.before, before), after=_definitions(ddl.after, after))


def _definitions(of: Definitions, shapes: Mapping[Name, TableShape | None]) -> Definitions:
    return replace(of, tables=tuple(_shaped(table, shapes.get(_name(table))) for table in of.tables))


def _shaped(table: TableDef, shape: TableShape | None) -> TableDef:
    return shape.of(table) if shape else table


def _name(table: TableDef) -> Name:
    return fold_pair((table.db, table.name))
