"""What a window does to mirrors: how it is split among them, and the effects of each DDL.

Tables linked by a DDL form one component, which one task applies in order. A component has its own segments, cut only
by its own DDL, so a DDL elsewhere causes no extra commit (R-58). The effects of a DDL are derived from the definitions
before and after it (tidb-binlog 1.14, 5.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from binlake.ddl.definitions import (
    EVENTS,
    FILTERED,
    Cell,
    LandedDdl,
    Segments,
    SegmentTable,
    WindowDefinitions,
    build_cell,
    fold_table_name,
    is_left_to_operator,
)
from binlake.dialect import tokenize_restored
from binlake.dialect.classify import (
    find_added_columns,
    find_alter_clauses,
    find_changed_columns,
    find_dropped_columns,
    find_renamed_columns,
    removes_partition_rows,
)
from binlake.dialect.tokens import Token, tokenize
from binlake.errors import SchemaError
from binlake.mirror.versions import MirrorState
from binlake.rows.codec.casts import CastMoment
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.statements.generation import list_recomputed

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


Kind = Literal["create", "adopt", "recover", "truncate", "alter", "copy", "drop", "remove", "inexact"]

_REMOVES = frozenset({Action.DROP_PARTITION, Action.TRUNCATE_PARTITION})
LOSES_ROWS = _REMOVES | {Action.EXCHANGE_PARTITION}
"""Actions that change rows without a row change in the binlog."""

PARTITIONS = "partitions were dropped, emptied or exchanged, for which no row changes are logged"
_COMPUTED = "a stored generated column was added or computed anew, and its values in existing rows are not logged"
_UNREADABLE = "the text of an ALTER cannot be parsed, so columns may have been renamed that Binlake takes for new ones"

_BRINGS_ROWS = frozenset({Action.RENAME_TABLE, Action.RENAME_TABLES, Action.CREATE_TABLES})
"""Actions after which a new table may already have rows: a rename from an unreplicated name, or a restore (BR)."""

_NEW_ID = frozenset({Action.PARTITION_BY, Action.REMOVE_PARTITIONING, Action.EXCHANGE_PARTITION})


@dataclass(frozen=True)
class MirrorEffect:
    """The effect `kind` on the mirror of `table`. `source`: the definition before (alter, copy).

    `adopt`: the table is new to the lake, which never received the rows that it has. `remove`: the rows in those
    partitions of `source` that `table` does not have any more are gone.

    `renamed`: former name by new name (lower case) of columns that the DDL's text renames. A CHANGE that converts also
    assigns a new column id, so only the text shows which column's values it has. The former name is empty for a column
    added under a name that another column gives up. `moment`: where and when the source converted values. `reason`: why
    a mirror becomes inexact.
    """

    kind: Kind
    table: TableDef
    source: TableDef | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    moment: CastMoment = field(default_factory=CastMoment)
    reason: str = ""


def derive_effects(ddl: LandedDdl) -> list[MirrorEffect]:
    """The effects in the order to apply: first those that write, so that copies find their sources, then drops."""
    before = [table for table in ddl.before.tables if table.kind == "table"]
    after = [table for table in ddl.after.tables if table.kind == "table"]
    named = {_get_written_name(table) for table in after}
    clauses = _parse_clauses(ddl)
    effects = [effect for table in after for effect in _writes(ddl.action, before, table)]
    if ddl.action in LOSES_ROWS or removes_partition_rows(clauses or []):
        effects += [_derive_loss(ddl, effect) for effect in effects if effect.kind == "alter"]
    session = ddl.after.session
    moment = CastMoment(session.tz, session.date, session.guessed, session.family)
    renamed = _find_former_names(clauses or [])
    effects = [replace(effect, renamed=renamed, moment=moment) for effect in effects]
    if clauses is None or ddl.decision == "refused":
        altered = [effect.table for effect in effects if effect.kind == "alter"]
        effects += [MirrorEffect("inexact", table, reason=_UNREADABLE) for table in altered]
    return effects + [MirrorEffect("drop", table) for table in before if _get_written_name(table) not in named]


def _derive_loss(ddl: LandedDdl, altered: MirrorEffect) -> MirrorEffect:
    """The effect of a DDL that removes or exchanges partitions of `altered.table`, besides the new definition."""
    had, left = (set(table.partition_ids) if table else set() for table in (altered.source, altered.table))
    # If an event filter keeps the DDL from the target, the rows stay there.
    runs = ddl.decision in ("apply", "replaced") or (is_left_to_operator(ddl.reason) and ddl.reason != EVENTS)
    if ddl.action in _REMOVES and runs and had - left:
        return replace(altered, kind="remove")
    return MirrorEffect("inexact", altered.table, reason=PARTITIONS)


def _writes(action: int, before: list[TableDef], table: TableDef) -> list[MirrorEffect]:
    same_id = next((old for old in before if old.id == table.id), None)
    same_name = next((old for old in before if fold_table_name(old) == fold_table_name(table)), None)
    # A mirror's folder has the name as spelled: a name in another letter case is another mirror.
    if same_id is not None and _get_written_name(same_id) != _get_written_name(table):
        return [MirrorEffect("copy", table, same_id)]
    source = same_id or (same_name if action in _NEW_ID else None)
    if source is not None:
        lost = [MirrorEffect("inexact", table, reason=_COMPUTED)] if list_recomputed(source, table) else []
        return [MirrorEffect("alter", table, source), *lost]
    if same_name is not None and action == Action.TRUNCATE_TABLE:
        return [MirrorEffect("truncate", table, same_name)]
    return [MirrorEffect(_choose_effect_of_new_table(action), table)]


def _choose_effect_of_new_table(action: int) -> Kind:
    if action in _BRINGS_ROWS:
        return "adopt"
    return "recover" if action in (Action.RECOVER_TABLE, Action.RECOVER_SCHEMA) else "create"


def _parse_clauses(ddl: LandedDdl) -> list[Token] | None:
    """The clauses of an ALTER TABLE, empty for another statement; None if the text cannot be parsed."""
    try:
        return find_alter_clauses(tokenize_restored(ddl.query) if ddl.decision != "apply" else tokenize(ddl.sql))
    except SchemaError:
        return None


def _find_former_names(clauses: Sequence[Token]) -> dict[str, str]:
    """Former name by new name of each `CHANGE [COLUMN] former new …`.

    The former name is empty for a column added under a name that another column gives up in the same statement.
    """
    given_up = {*find_renamed_columns(clauses).values(), *find_dropped_columns(clauses)}
    # If columns of shards are joined, the second shard adds a column that exists already.
    return find_changed_columns(clauses) | dict.fromkeys(find_added_columns(clauses) & given_up, "")


def _get_written_name(table: TableDef) -> tuple[str, str]:
    return table.db, table.name
