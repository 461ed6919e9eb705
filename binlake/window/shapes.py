"""The shapes of a window's tables: read at its lo, then updated by the window's own DDL (S4-22, S4-23).

With a shape every later step sees one definition: the source's columns that the target has, and the unique keys of
both. So the identity of a row is the target's. A DDL runs on both sides, so differences remain: under a new name after
a RENAME, under a new id after a TRUNCATE. A table that the window itself drops and creates is equal on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from binlake.rows.schema import IndexInfo, TableDef
from binlake.rows.schema.actions import PUBLIC
from binlake.rows.schema.delta import Definitions
from binlake.rows.schema.names import fold_name, fold_pair
from binlake.window.definitions import LandedDdl

Name = tuple[str, str]


@dataclass(frozen=True)
class TableShape:
    """The differences of a table. `own`: columns of the target only; `kept`: those whose values must be preserved, as
    the target spells them; `dropped`: columns of the source that are not written; `lost`: columns of the source's
    unique keys that the target lacks. Names of `dropped` and `lost` are in lower case.
    """

    own: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    lost: tuple[tuple[str, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.own or self.dropped or self.lost)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"own": self.own, "kept": self.kept, "dropped": self.dropped, "lost": self.lost}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> TableShape:
        """The shape of `to_dict`."""
        lost = tuple(tuple(columns) for columns in raw["lost"])
        return cls(tuple(raw["own"]), tuple(raw["kept"]), tuple(raw["dropped"]), lost)

    def of(self, table: TableDef) -> TableDef:
        """The definition that the source's `table` and the target share."""
        dropped = frozenset(self.dropped)
        columns = tuple(column for column in table.all_columns if fold_name(column.name) not in dropped)
        # A definition may mark its integer key with a flag: from here on every unique key is an index.
        keys = [key for key in table.unique_keys() if self._is_shared(key, dropped)]
        plain = [index for index in table.indexes if not (index.unique and index.state == PUBLIC)]
        return replace(
            table,
            all_columns=columns,
            indexes=(*keys, *plain),
            pk_is_handle=False,
            is_common_handle=False,
            own=self.own,
            kept=self.kept,
        )

    def _is_shared(self, key: IndexInfo, gone: frozenset[str]) -> bool:
        names = tuple(sorted(fold_name(part.name) for part in key.columns))
        return names not in self.lost and gone.isdisjoint(names)


@dataclass(frozen=True)
class Shapes:
    """Shapes at a window's lo by the target's name, for tables that differ."""

    at_lo: Mapping[Name, TableShape] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.at_lo)

    def base(self, table: TableDef) -> TableDef:
        """The definition at lo."""
        return _apply_shape(table, self._shapes_by_name().get(_name(table)))

    def follow(self, ddls: Iterable[LandedDdl]) -> tuple[LandedDdl, ...]:
        """The window's DDL in commit order, with the definitions that both sides share."""
        known = self._shapes_by_name()
        return tuple(_follow_ddl(ddl, known) for ddl in ddls)

    def to_list(self) -> list[Any]:
        """Plain values for JSON, by name."""
        return [[db, table, shape.to_dict()] for (db, table), shape in sorted(self.at_lo.items(), key=itemgetter(0))]

    @classmethod
    def from_list(cls, raw: Iterable[Any]) -> Shapes:
        """The shapes of `to_list`."""
        return cls({(db, table): TableShape.from_dict(shape) for db, table, shape in raw})

    def _shapes_by_name(self) -> dict[Name, TableShape]:
        return {fold_pair(name): shape for name, shape in self.at_lo.items()}


def _follow_ddl(ddl: LandedDdl, known: dict[Name, TableShape]) -> LandedDdl:
    """`ddl` with shared definitions; updates `known`, the shapes by name, to after it."""
    before = {_name(table): known.pop(_name(table), None) for table in ddl.before.tables}
    ids = {table.id: before[_name(table)] for table in ddl.before.tables}
    # By id first, as a RENAME may swap two names. A TRUNCATE only keeps the name.
    after = {_name(t): ids[t.id] if t.id in ids else before.get(_name(t)) for t in ddl.after.tables}
    known.update({name: shape for name, shape in after.items() if shape is not None})
    return replace(ddl, before=_shape_definitions(ddl.before, before), after=_shape_definitions(ddl.after, after))


def _shape_definitions(of: Definitions, shapes: Mapping[Name, TableShape | None]) -> Definitions:
    return replace(of, tables=tuple(_apply_shape(table, shapes.get(_name(table))) for table in of.tables))


def _apply_shape(table: TableDef, shape: TableShape | None) -> TableDef:
    return shape.of(table) if shape else table


def _name(table: TableDef) -> Name:
    return fold_pair((table.db, table.name))
