"""Splits a window among mirrors: tables linked by a DDL form one component, which one task applies in order.

A component has its own segments, cut only by its own DDL, so a DDL elsewhere causes no extra commit (R-58).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from binlake.ddl.definitions import FILTERED, Cell, LandedDdl, Segments, SegmentTable, WindowDefinitions, build_cell
from binlake.mirror.versions import MirrorState
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair

Name = tuple[str, str]
"""(db, table) as spelled."""


@dataclass(frozen=True)
class ComponentPlan:
    """One component: its DDL (the k-th opens segment k), definitions by segment and table, known versions before.

    `is_base`: its rows are of a full load only: each has a key of its own. `is_repeated`: several net changes may be of
    one key, of which the last one counts; the tables have keys.
    """

    number: int
    segments: Segments
    ddls: tuple[LandedDdl, ...]
    tables: Mapping[SegmentTable, TableDef]
    known: Mapping[Name, MirrorState] = field(default_factory=dict)
    is_base: bool = False
    is_repeated: bool = False


@dataclass(frozen=True)
class MirrorPlan:
    """All components of a window. `component`: the component's number by table name in lower case."""

    components: tuple[ComponentPlan, ...]
    component: Mapping[Name, int]
    cells: tuple[Cell, ...]


def plan_mirrors(
    lo: int,
    hi: int,
    definitions: WindowDefinitions,
    ddls: Iterable[LandedDdl],
    touched: Iterable[Name],
    known: Mapping[Name, MirrorState],
) -> MirrorPlan:
    """The plan for (lo, hi]. `touched`: the tables with row changes. DDL that a filter left out is ignored."""
    touched = sorted(set(touched))
    relevant = [ddl for ddl in ddls if ddl.reason != FILTERED and _list_names(ddl)]
    groups = _find_components([*([name] for name in touched), *(_list_names(ddl) for ddl in relevant)])
    plans, cells = [], []
    for number in sorted(set(groups.values())):
        own = tuple(ddl for ddl in relevant if groups[_lower(_list_names(ddl)[0])] == number)
        segments = Segments(lo, hi, tuple(ddl.since for ddl in own))
        names = [name for name in touched if groups[_lower(name)] == number]
        found = list(_find_cells(definitions, segments, names))
        tables = {
            SegmentTable(c.segment, c.db, c.table): definitions.require_definition_within(
                c.db, c.table, c.since, c.until
            )
            for c in found
        }
        members = {name: version for name, version in known.items() if groups.get(_lower(name)) == number}
        plans.append(ComponentPlan(number, segments, own, tables, members))
        cells += found
    return MirrorPlan(tuple(plans), groups, tuple(cells))


def _list_names(ddl: LandedDdl) -> list[Name]:
    return [(table.db, table.name) for table in (*ddl.before.tables, *ddl.after.tables) if table.kind == "table"]


def _lower(name: Name) -> Name:
    return fold_pair(name)


def _find_cells(definitions: WindowDefinitions, segments: Segments, names: list[Name]) -> Iterable[Cell]:
    # A table that exists only in some segments has rows only in those.
    for segment in range(len(segments.starts) + 1):
        since, until = segments.find_bounds(segment)
        for name in names:
            if definitions.exists_within(*name, since, until):
                yield build_cell(definitions, segments, SegmentTable(segment, *name))


def _find_components(groups: Iterable[list[Name]]) -> dict[Name, int]:
    parent: dict[Name, Name] = {}

    def find_root(name: Name) -> Name:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for group in groups:
        for name in group:
            parent[find_root(_lower(name))] = find_root(_lower(group[0]))
    numbers = {top: number for number, top in enumerate(sorted({find_root(name) for name in parent}))}
    return {name: numbers[find_root(name)] for name in parent}
