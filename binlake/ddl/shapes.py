"""The shapes of a window's tables: read at its lo, then updated by the window's DDL (S4-22, S4-23).

With a shape, all later steps use one definition: the source's columns that the target has too, and the unique keys that
both have. So a row's identity is valid at the target. A DDL runs on both sides, so a difference remains: under the new
name after a RENAME, under the new id after a TRUNCATE. A table that the window itself creates is equal on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from binlake.ddl.definitions import LandedDdl
from binlake.rows.schema import IndexInfo, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rows.schema.job import PUBLIC
from binlake.rows.schema.state import DdlSide

Name = tuple[str, str]


@dataclass(frozen=True)
class TableShape:
    """The differences of a table between source and target.

    `own`: columns that only the target has; `kept`: those of them whose values must be preserved, as the target spells
    them; `dropped`: columns of the source that are not written; `lost`: the column lists of the source's unique keys
    that the target lacks. Names of `dropped` and `lost` are in lower case.
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
        """Parse what `to_dict` wrote."""
        lost = tuple(tuple(columns) for columns in raw["lost"])
        return cls(tuple(raw["own"]), tuple(raw["kept"]), tuple(raw["dropped"]), lost)

    def apply_to(self, table: TableDef) -> TableDef:
        """The part of the source's definition `table` that the target shares."""
        dropped = frozenset(self.dropped)
        columns = tuple(column for column in table.all_columns if fold_name(column.name) not in dropped)
        # A definition may mark an integer primary key by a flag. From here on every unique key is an index.
        keys = [key for key in table.list_unique_keys() if self._is_shared(key, dropped)]
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
    """The shapes at a window's lo of the tables that differ, by the target's name."""

    at_lo: Mapping[Name, TableShape] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.at_lo)

    def derive_base(self, table: TableDef) -> TableDef:
        """The shared definition of `table` at lo."""
        return _apply_shape(table, self._collect_shapes_by_name().get(fold_table_name(table)))

    def follow(self, ddls: Iterable[LandedDdl]) -> tuple[LandedDdl, ...]:
        """The window's DDL, given in commit order, with the definitions that both sides share."""
        known = self._collect_shapes_by_name()
        return tuple(_follow_ddl(ddl, known) for ddl in ddls)

    def to_list(self) -> list[Any]:
        """Plain values for JSON, sorted by name."""
        return [[db, table, shape.to_dict()] for (db, table), shape in sorted(self.at_lo.items(), key=itemgetter(0))]

    @classmethod
    def from_list(cls, raw: Iterable[Any]) -> Shapes:
        """Parse what `to_list` wrote."""
        return cls({(db, table): TableShape.from_dict(shape) for db, table, shape in raw})

    def _collect_shapes_by_name(self) -> dict[Name, TableShape]:
        return {fold_pair(name): shape for name, shape in self.at_lo.items()}


def _follow_ddl(ddl: LandedDdl, known: dict[Name, TableShape]) -> LandedDdl:
    """`ddl` with shared definitions. Updates `known`, the shapes by name, to the state after the DDL."""
    before = {fold_table_name(table): known.pop(fold_table_name(table), None) for table in ddl.before.tables}
    ids = {table.id: before[fold_table_name(table)] for table in ddl.before.tables}
    # Match by id first, as a RENAME may swap two names; then by name, which a TRUNCATE keeps.
    after = {fold_table_name(t): ids[t.id] if t.id in ids else before.get(fold_table_name(t)) for t in ddl.after.tables}
    known.update({name: shape for name, shape in after.items() if shape is not None})
    return replace(ddl, before=_shape_definitions(ddl.before, before), after=_shape_definitions(ddl.after, after))


def _shape_definitions(of: DdlSide, shapes: Mapping[Name, TableShape | None]) -> DdlSide:
    return replace(of, tables=tuple(_apply_shape(table, shapes.get(fold_table_name(table))) for table in of.tables))


def _apply_shape(table: TableDef, shape: TableShape | None) -> TableDef:
    return shape.apply_to(table) if shape else table


def fold_table_name(table: TableDef) -> Name:
    """(db, name) of a table in the form for comparisons."""
    return fold_pair((table.db, table.name))
