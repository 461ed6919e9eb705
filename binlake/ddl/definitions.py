"""The definition of a table at a commit_ts of a window, and its shape at the target, as the landed DDL gives them.

Identity and types are those of a row's segment, never the present ones: a DDL inside the window changes them only for
later rows (hazards R-18).

Shapes are read at the window's lo, then updated by its DDL (S4-22, S4-23). With a shape, all later steps use one
definition: the source's columns that the target has too, and the unique keys that both have. So a row's identity is
valid at the target. A DDL runs on both sides, so a difference remains: under the new name after a RENAME, under the new
id after a TRUNCATE. A table that the window itself creates is equal on both sides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from binlake.common.sql import Dialect
from binlake.dialect import derive_bytewise_definitions, render_bytewise
from binlake.dialect.replacement import find_replaced_names
from binlake.errors import SchemaError
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import IndexInfo, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rows.schema.job import PUBLIC
from binlake.rows.schema.state import DdlSide

IGNORED = "ignore-txn-commit-ts"
"""The rule for a DDL that an operator runs on the target: the schema changes, but Binlake runs no statement."""
SYNC_DDL = "sync-ddl"
EVENTS = "event filter"
EXTRACT = "extract columns"
RENAMED_IN = "renamed into the filter"
FILTERED = "filtered"
"""More rules that skip a DDL. Like IGNORED, all but `filtered` leave the target's definition to an operator."""

_BY_HAND = frozenset({IGNORED, SYNC_DDL, EVENTS, EXTRACT, RENAMED_IN})
Name = tuple[str, str]


def is_left_to_operator(reason: str) -> bool:
    """True for a rule that leaves a DDL to an operator: later rows then have other definitions on the target."""
    return reason in _BY_HAND


class WindowBase(Protocol):
    """The tables of the target at the start of a window. Without routes, `SchemaState` is one."""

    def find(self, db: str, table: str) -> TableDef | None:
        """The table of that name (case-insensitive), or None."""


@dataclass(frozen=True)
class LandedDdl:
    """A row of the lake table `ddl`.

    `decision`: `apply`, `skip` (by the rule `reason`), `refused` (no target can run it; `reason` says why), or an
    operator's `sql`: `replaced` or `injected`. An injected statement does not come from the source: it runs before the
    changes at `commit_ts`.

    `query` is the source's text, `sql` the routed one; `db`, `table`, `before`, `after` are the target's. `since`: the
    position at which the window is cut; it is at or below the commit_ts, because rows with the new definition may have
    committed earlier. `segment`: the segment of its landed window that it opens or is in. `alert`: a message to the
    operator when the DDL is merged; not stored.
    """

    commit_ts: int
    since: int
    start_ts: int
    schema_version: int
    job_id: int
    action: int
    db: str
    table: str
    query: str
    sql: str
    decision: str
    reason: str
    before: DdlSide
    after: DdlSide
    segment: int = 0
    alert: str = ""

    @property
    def opens_segment(self) -> bool:
        """True when later rows have other definitions on the target: the DDL runs, or is left to the operator."""
        return self.decision != "skip" or is_left_to_operator(self.reason)

    @property
    def tables(self) -> set[tuple[str, str]]:
        """(db, table) of the tables that the DDL creates, changes or removes at the target."""
        sides = (*self.before.tables, *self.after.tables)
        return {(table.db, table.name) for table in sides if table.kind == "table"} | self._find_names_in_operator_sql()

    @property
    def touched(self) -> list[str]:
        """`db.table` of everything touched, including views and sequences, sorted: the column `tables`."""
        names = {(table.db, table.name) for table in (*self.before.tables, *self.after.tables)}
        return sorted(f"{db}.{table}" for db, table in names | self._find_names_in_operator_sql())

    def _find_names_in_operator_sql(self) -> set[tuple[str, str]]:
        names = find_replaced_names(self.sql, self.db) if self.decision in ("replaced", "injected") else ()
        return {name for name in names if name[1]}


class SegmentTable(NamedTuple):
    """A table (of the target) in one segment of a window."""

    segment: int
    db: str
    table: str

    @property
    def name(self) -> tuple[str, str]:
        """(db, table)."""
        return self.db, self.table


class KeyForm(NamedTuple):
    """How keys are formed from rows: `identity` (primary, unique, row), its `columns`, and their origin defaults.

    The image of a deleted row written before ADD COLUMN lacks the column, and then has its default, of `filled`.
    """

    identity: str
    columns: tuple[str, ...]
    filled: tuple[str | None, ...]


@dataclass(frozen=True)
class Cell:
    """A table inside one segment: the changes with since <= commit_ts < until, and the form of its keys there."""

    db: str
    table: str
    segment: int
    since: int
    until: int
    identity: str
    columns: tuple[str, ...]
    filled: tuple[str | None, ...]

    @property
    def key_form(self) -> KeyForm:
        """How the keys of its rows are formed."""
        return KeyForm(self.identity, self.columns, self.filled)


def use_bytewise_collations(ddl: LandedDdl, dialect: Dialect) -> LandedDdl:
    """Rewrite `ddl` of a source without new collations for the target."""
    return replace(
        ddl,
        sql=ddl.sql if ddl.decision == "refused" else render_bytewise(ddl.sql, dialect),
        before=derive_bytewise_definitions(ddl.before, dialect),
        after=derive_bytewise_definitions(ddl.after, dialect),
    )


class WindowDefinitions:
    """Definitions by commit_ts in the window (lo, hi]. `base`: the schema at lo; `ddls`: the window's DDL in order.

    `shown` converts a definition of `base` to the target's; those of `ddls` are the target's already.
    """

    def __init__(
        self, base: WindowBase, ddls: Iterable[LandedDdl], shown: Callable[[TableDef], TableDef] | None = None
    ) -> None:
        self._base = base
        self._shown = cache(shown) if shown else None
        self._changes: dict[tuple[str, str], list[tuple[int, TableDef | None]]] = {}
        for ddl in ddls:
            for table in ddl.before.tables:
                self._record(table, ddl.since, None)
            for table in ddl.after.tables:
                self._record(table, ddl.since, table)

    def _record(self, table: TableDef, commit_ts: int, definition: TableDef | None) -> None:
        self._changes.setdefault(fold_pair((table.db, table.name)), []).append((commit_ts, definition))

    def find_at(self, db: str, table: str, commit_ts: int) -> TableDef | None:
        """The definition in force at `commit_ts`, including a DDL with exactly that commit_ts; None = no such table."""
        changes = self._changes.get(fold_pair((db, table)), [])
        place = bisect_right(changes, commit_ts, key=lambda change: change[0])
        if place:
            return changes[place - 1][1]
        definition = self._base.find(db, table)
        return definition if definition is None or self._shown is None else self._shown(definition)

    def require_definition_within(self, db: str, table: str, since: int, until: int) -> TableDef:
        """The definition for the segment [since, until): the one at its start, else the first one inside it.

        A DDL skipped by a filter opens no segment, so a table that it creates appears inside one. Raises SchemaError.
        """
        definition = self._find_within(db, table, since, until)
        if definition is None:
            raise SchemaError(
                "a table has rows but no definition at their commit_ts",
                where={"table": f"{db}.{table}", "since": since, "until": until},
                hint="the lake's schema history is damaged; derive the window again from merge",
            )
        return definition

    def exists_within(self, db: str, table: str, since: int, until: int) -> bool:
        """True when the table exists somewhere in [since, until)."""
        return self._find_within(db, table, since, until) is not None

    def _find_within(self, db: str, table: str, since: int, until: int) -> TableDef | None:
        definition = self.find_at(db, table, since)
        if definition is not None:
            return definition
        changes = self._changes.get(fold_pair((db, table)), [])
        place = bisect_left(changes, since, key=lambda change: change[0])
        return next((new for ts, new in changes[place:] if ts < until and new is not None), None)


class SegmentBounds(NamedTuple):
    """A segment has the commit_ts with since <= commit_ts < until."""

    since: int
    until: int


@dataclass(frozen=True)
class Segments:
    """The window (lo, hi], cut by DDL: `starts` ascend, and the k-th start opens segment k."""

    lo: int
    hi: int
    starts: tuple[int, ...]

    def find_segment(self, commit_ts: int) -> int:
        """The segment of `commit_ts`. A DDL belongs to the segment that it opens."""
        return bisect_right(self.starts, commit_ts)

    def find_bounds(self, segment: int) -> SegmentBounds:
        """The bounds of the segment with this number."""
        since = self.starts[segment - 1] if segment else self.lo + 1
        until = self.starts[segment] if segment < len(self.starts) else self.hi + 1
        return SegmentBounds(since, until)


def require_definition(definitions: WindowDefinitions, segments: Segments, place: SegmentTable) -> TableDef:
    """The definition of a table in a segment. Raises SchemaError when it has none there."""
    return definitions.require_definition_within(*place.name, *segments.find_bounds(place.segment))


def build_cell(definitions: WindowDefinitions, segments: Segments, place: SegmentTable) -> Cell:
    """The cell of a table in a segment. Raises SchemaError when it has no definition there."""
    definition = require_definition(definitions, segments, place)
    identity, bounds = definition.find_identity(), segments.find_bounds(place.segment)
    filled = tuple(derive_key_defaults(definition).values())
    return Cell(*place.name, place.segment, *bounds, identity.kind, identity.columns, filled)


def derive_key_defaults(definition: TableDef) -> dict[str, str | None]:
    """By identity column, the value of rows that were written before its ADD COLUMN (tidb-binlog 5.5)."""
    columns = ((name, definition.find_column(name)) for name in definition.find_identity().columns)
    return {name: None if column is None else derive_filled_text(column) for name, column in columns}


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
