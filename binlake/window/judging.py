"""One DDL under filters and routes: whether it runs on the target, as which text, and what it changes there.

Every name is judged, old and new (R-28). A DDL that would cost one table of many sources the rows of the others never
runs (R-15). What is unexpectedly left out carries an alert.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from binlake.dialect import Known, needs_standard, restated, session_db, standard_text
from binlake.dialect.classify import classify
from binlake.errors import SchemaError
from binlake.rows.schema import Action, DdlJob, TableDef
from binlake.rows.schema.delta import Definitions
from binlake.rows.schema.names import fold_name, fold_pair
from binlake.statements.literal import qualified
from binlake.window.definitions import EVENTS, EXTRACT, FILTERED, IGNORED, RENAMED_IN, SYNC_DDL
from binlake.window.spelling import Spelling
from binlake.window.targets import Naming, Shape, TargetTables, merged, renamed_database, widest

_Sides = tuple[Definitions, Definitions]
NOTHING = Definitions((), ())
NO_CHANGE = (NOTHING, NOTHING)
NOTHING_KNOWN = Known(frozenset(), frozenset())
RENAMED_OUT = "renamed out of the filter"
_RENAMED_IN_ALERT = (
    "copy the table to the target as it was at this commit_ts, then name it in filter.ignore-txn-commit-ts"
)

_REMOVES = frozenset(
    {Action.DROP_SCHEMA, Action.DROP_TABLE, Action.DROP_VIEW, Action.DROP_SEQUENCE, Action.TRUNCATE_TABLE}
)
_EMPTIES = frozenset({Action.TRUNCATE_TABLE, Action.TRUNCATE_PARTITION, Action.DROP_PARTITION})
_DATABASE = frozenset({Action.CREATE_SCHEMA, Action.DROP_SCHEMA, Action.SCHEMA_CHARSET, Action.RECOVER_SCHEMA})


@dataclass(frozen=True)
class Judged:
    """`reason` empty = it runs as `sql`; `before`, `after`: what it changes at the target, `alert` for an operator.

    `replaced`: `sql` is an operator's. `refusal`: why no target can run it, for people; empty = it may.
    """

    reason: str
    sql: str
    before: Definitions
    after: Definitions
    db: str
    table: str
    alert: str = ""
    replaced: bool = False
    refusal: str = ""


@dataclass(frozen=True)
class Ddl:
    """A DDL that changed the source's schema: `query` its text, the definitions of the source around it."""

    commit_ts: int
    query: str
    job: DdlJob
    before: Definitions
    after: Definitions
    names: Spelling

    @property
    def place(self) -> tuple[str, str]:
        """(db, table) of the job, as the definitions spell them."""
        return self.names.of_job(self.job.schema_name, self.job.table_name, (*self.after.tables, *self.before.tables))

    @property
    def on_database(self) -> bool:
        """True for CREATE, ALTER and DROP DATABASE."""
        return self.job.type in _DATABASE


class Judge:
    """Judges the DDL of a window in commit order; `tables` are the target's at its start and follow along."""

    def __init__(self, naming: Naming, tables: TargetTables, ignored: Collection[int]) -> None:
        self._naming = naming
        self._rules = naming.rules
        self._tables = tables
        self._ignored = ignored

    def judge(self, ddl: Ddl) -> Judged:
        """The verdict. Raises SchemaError (a shard's DDL that cannot be merged), ConfigError, Permanent."""
        held = self._tables.neighbours(ddl.before.tables)
        self._tables.change(ddl.before, ddl.after)
        kept = self._kept(ddl)
        if kept is None:
            return self._left_out(ddl, FILTERED, self._quiet(ddl))
        shared = self._first_shared(ddl, kept, held)
        if ddl.commit_ts in self._ignored or ddl.commit_ts in self._rules.replacements:
            return self._by_operator(ddl, self._by_hand(kept) if shared else self._named(kept))
        if not self._passes(ddl):
            removes = ddl.job.type in _REMOVES
            if ddl.job.type in _EMPTIES:
                for table in kept[0].tables:
                    self._rules.require_one_key(table, {"rows by DDL"})
            return self._left_out(ddl, EVENTS, NO_CHANGE if removes or shared else self._named(kept))
        verdict = self._renamed_across(ddl, kept, shared) or self._database(ddl) or self._renamed_in_place(ddl, kept)
        if verdict is None and shared is not None:
            verdict = self._shared(ddl, kept, held, shared)
        if verdict is not None:
            return verdict
        if not self._rules.copies_ddl:
            return self._left_out(ddl, SYNC_DDL, self._named(kept))
        if self._extracts(kept) and ddl.job.type in (Action.CREATE_TABLE, Action.CREATE_TABLES):
            return self._left_out(ddl, EXTRACT, self._named(kept), "create the table at the target by hand")
        return self._applied(ddl, kept)

    def _kept(self, ddl: Ddl) -> _Sides | None:
        """The definitions without tables that a filter leaves out; None when nothing is left."""
        before, after = (self._naming.kept(side.tables) for side in (ddl.before, ddl.after))
        if ddl.on_database or not (ddl.before.tables or ddl.after.tables):
            if not before and not after and not self._rules.keeps(*self._own_name(ddl)):
                return None
        elif not before and not after:
            return None
        return Definitions(ddl.before.databases, tuple(before)), Definitions(ddl.after.databases, tuple(after))

    def _own_name(self, ddl: Ddl) -> tuple[str, str]:
        return ddl.place[0], "" if ddl.on_database else ddl.place[1]

    def _quiet(self, ddl: Ddl) -> _Sides:
        # Under routes a name of the source may be that of another table at the target.
        return NO_CHANGE if self._rules.routes else (ddl.before, ddl.after)

    def _passes(self, ddl: Ddl) -> bool:
        """One name that passes is enough; a rename is judged by its old name."""
        if ddl.on_database:
            return self._rules.events.passes_ddl(ddl.place[0], "", ddl.job.type, ddl.query)
        tables = self._naming.kept(ddl.before.tables) or self._naming.kept(ddl.after.tables)
        names = [(table.db, table.name) for table in tables] or [ddl.place]
        return any(self._rules.events.passes_ddl(*name, ddl.job.type, ddl.query) for name in names)

    def _renamed_across(self, ddl: Ddl, kept: _Sides, shared: TableDef | None) -> Judged | None:
        """A rename of which one name only is replicated, when it is all that the DDL does."""
        if ddl.job.type not in (Action.RENAME_TABLE, Action.RENAME_TABLES):
            return None
        old, new = ({table.id for table in side.tables} for side in kept)
        if old & new:
            return None
        gone = kept[0].tables
        if old and shared is None and self._drops(gone):
            sides = self._named((kept[0], NOTHING))
            judged = self._verdict(ddl, "", self._drop_text(gone), sides, "")
            return replace(judged, db=sides[0].tables[0].db, table=sides[0].tables[0].name)
        if old:
            return self._left_out(ddl, RENAMED_OUT, self._named(kept), "its table stays at the target, unchanged")
        judged = self._verdict(ddl, "", ddl.query, self._named(kept), _RENAMED_IN_ALERT)
        return replace(judged, refusal=f"{RENAMED_IN}: the target does not have this table's rows, or has old ones")

    def _renamed_in_place(self, ddl: Ddl, kept: _Sides) -> Judged | None:
        """A rename of a table whose name at the target stays: `log` to `LOG`, where a route gives both one name."""
        if ddl.job.type != Action.RENAME_TABLE or not kept[0].tables:
            return None
        was, now = ([self._naming.table(table.db, table.name) for table in side.tables] for side in kept)
        return self._left_out(ddl, "the target's name of the table stays", self._named(kept)) if was == now else None

    def _drops(self, renamed_out: Collection[TableDef]) -> bool:
        tables = [table for table in renamed_out if table.kind == "table"]
        return self._rules.renamed_out == "drop" and self._rules.copies_ddl and len(tables) == len(renamed_out) > 0

    def _drop_text(self, tables: Collection[TableDef]) -> str:
        names = (qualified(*self._naming.table(table.db, table.name)) for table in tables)
        return f"DROP TABLE {', '.join(names)}"

    def _database(self, ddl: Ddl) -> Judged | None:
        """A database of the target that other databases or tables of the source go into too."""
        if not ddl.on_database or not self._rules.routes:
            return None
        target = self._naming.database(ddl.place[0])
        others = sorted(self._tables.into(target) - {fold_name(ddl.job.schema_name)})
        if not others:
            return None
        what = f"{others[0]} goes into the database {target} too"
        alert = what if ddl.job.type == Action.DROP_SCHEMA else ""
        return self._left_out(ddl, f"shared database: {what}", NO_CHANGE, alert)

    def _first_shared(self, ddl: Ddl, kept: _Sides, held: dict[int, list[TableDef]]) -> TableDef | None:
        """A table of the DDL whose target has other tables too; None = none has."""
        if not self._rules.routes or ddl.on_database:
            return None
        sides = [(table, held.get(table.id, [])) for table in kept[0].tables]
        sides += [(table, self._tables.sources(table)) for table in kept[1].tables]
        return next((table for table, all_of in sides if any(other.id != table.id for other in all_of)), None)

    def _by_hand(self, kept: _Sides) -> _Sides:
        """What somebody's hand left at a shared target: the shape of its tables now, if it is still there."""
        found = []
        for table in kept[1].tables:
            shape = self._naming.definition(merged(self._tables.sources(table)))
            found.append(replace(shape, id=table.id, raw={**shape.raw, "id": table.id}))
        before, _ = self._named(kept)
        return (before, Definitions((), tuple(found))) if found else NO_CHANGE

    def _shared(self, ddl: Ddl, kept: _Sides, held: dict[int, list[TableDef]], shared: TableDef) -> Judged | None:
        """What to do where other tables of the source share the target; None = it runs as it is."""
        old, new = ({table.id: table for table in side.tables} for side in kept)
        if ddl.job.type in _REMOVES or not new:
            what = f"{_name(shared)} shares its target with other tables: its rows stay there"
            return self._left_out(ddl, f"shared table: {what}", NO_CHANGE, what)
        if not old:
            return self._created(ddl, shared)
        moved = [t for key, t in new.items() if key in old and self._target(old[key]) != self._target(t)]
        if moved or set(old) != set(new):
            raise self._refused(ddl, "a rename or swap moves a table whose target has others too")
        return self._altered(ddl, old, new, held)

    def _created(self, ddl: Ddl, table: TableDef) -> Judged:
        others = [other for other in self._tables.sources(table) if other.id != table.id]
        known = widest(others)
        if known is None or not Shape(known).holds(Shape(table)):
            raise self._refused(ddl, "a table joins others at the target and has another shape")
        return self._left_out(ddl, f"shared table: {_name(others[0])} made it already", NO_CHANGE)

    def _altered(
        self, ddl: Ddl, old: dict[int, TableDef], new: dict[int, TableDef], held: dict[int, list[TableDef]]
    ) -> Judged | None:
        key = next(iter(new))
        sources = self._tables.sources(new[key])
        was, now = widest(held.get(key, [])), widest(sources)
        if was is None or now is None:
            raise self._refused(ddl, "the tables that share a target differ in more than added columns")
        if Shape(was) == Shape(now):
            return self._left_out(ddl, "shared table: the target has the shape that all its tables need", NO_CHANGE)
        if Shape(was) == Shape(old[key]) and Shape(now) == Shape(new[key]):
            return None
        raise self._refused(ddl, "the DDL of one table does not bring the target from its shape to the next")

    def _extracts(self, kept: _Sides) -> bool:
        return any(self._rules.routes.extracted(table.db, table.name) for table in kept[1].tables)

    def _target(self, table: TableDef) -> tuple[str, str]:
        return fold_pair(self._naming.table(table.db, table.name))

    def _by_operator(self, ddl: Ddl, sides: _Sides) -> Judged:
        sql = self._rules.replacements.get(ddl.commit_ts)
        if sql is None:
            return self._left_out(ddl, IGNORED, sides)
        alert = "the target runs the statement of ddl-replacement; the schema history keeps the source's definitions"
        return replace(self._verdict(ddl, "", sql, sides, alert), replaced=True)

    def _applied(self, ddl: Ddl, kept: _Sides) -> Judged:
        try:
            known = ddl.names.known() if needs_standard(ddl.query, ddl.job.query) else NOTHING_KNOWN
            ddl = replace(ddl, query=standard_text(ddl.query, ddl.job.query, known))
            sql, alert = self._text(ddl, kept)
            there = {table.id for table in kept[1].tables}
            left = [table for table in kept[0].tables if table.id not in there]
            if ddl.job.type == Action.RENAME_TABLES and self._drops(left):
                sql, alert = f"{self._drop_text(left)}; {sql}", ""
        except SchemaError as error:
            # The plan of the window goes on: who applies it stops at this DDL alone, and says what to do.
            judged = self._verdict(ddl, "", ddl.query, self._named(kept), error.message)
            return replace(judged, refusal=error.message)
        before, after = self._named(kept)
        if ddl.job.type == Action.DROP_SCHEMA and self._rules.routes:
            gone = {fold_name(db.name) for db in before.databases}
            stay = [table for table in before.tables if fold_name(table.db) not in gone]
            before = Definitions(before.databases, tuple(t for t in before.tables if fold_name(t.db) in gone))
            alert = f"{_name(stay[0])} of another database stays at the target" if stay else alert
        return self._verdict(ddl, "", sql, (before, after), alert)

    def _text(self, ddl: Ddl, kept: _Sides) -> tuple[str, str]:
        """(text, alert): with the target's names, and without the parts of a list that a filter leaves out."""
        found = classify(ddl.query)
        home = session_db(found, ddl.before.tables, ddl.place[0])
        own: list[tuple[str, str]] = []
        alert = ""
        if ddl.job.type == Action.RENAME_TABLES:
            names = [(db or home, name) for db, name in found.tables]
            own = [name for name in names if self._rules.keeps(*name)]
            if len(own) < len(names):
                left = next(name for name in names if not self._rules.keeps(*name))
                alert = f"the renames of or to {'.'.join(left)} are left out"
        elif ddl.job.type in (Action.DROP_TABLE, Action.DROP_VIEW, Action.DROP_SEQUENCE):
            own = [(table.db, table.name) for table in kept[0].tables]
        text = restated(ddl.query, home, ddl.names, own)
        return self._without_former(ddl, kept) + text, alert

    def _without_former(self, ddl: Ddl, kept: _Sides) -> str:
        """CREATE OR REPLACE VIEW takes the place of a view spelled otherwise, which a target would keep beside it."""
        if ddl.job.type != Action.CREATE_VIEW:
            return ""
        now = {(table.db, table.name) for table in kept[1].tables}
        former = [table for table in kept[0].tables if (table.db, table.name) not in now]
        names = (qualified(*self._naming.table(table.db, table.name)) for table in former)
        return "".join(f"DROP VIEW IF EXISTS {name}; " for name in names)

    def _named(self, sides: _Sides) -> _Sides:
        """Definitions of the source as those of the target."""
        if not self._rules.routes:
            return sides
        before, after = (
            Definitions(
                tuple(renamed_database(db, self._naming.database(db.name)) for db in side.databases),
                tuple(self._naming.definition(table) for table in side.tables),
            )
            for side in sides
        )
        return before, after

    def _left_out(self, ddl: Ddl, reason: str, sides: _Sides, alert: str = "") -> Judged:
        return self._verdict(ddl, reason, ddl.query, sides, alert)

    def _verdict(self, ddl: Ddl, reason: str, sql: str, sides: _Sides, alert: str) -> Judged:
        db, table = ddl.place
        if self._rules.routes and self._rules.keeps(*self._own_name(ddl)):
            db, table = (self._naming.database(db), "") if ddl.on_database else self._naming.table(db, table)
        return Judged(reason, sql, *sides, db, table, alert)

    def _refused(self, ddl: Ddl, what: str) -> SchemaError:
        return SchemaError(
            f"a DDL of a table that shares its target cannot be merged: {what}",
            where={"commit_ts": ddl.commit_ts, "table": ".".join(ddl.place),
                   "query": ddl.query[:200]},
            hint="bring the target to the shape of all its tables by hand and name the commit_ts in"
            " filter.ignore-txn-commit-ts",
        )  # fmt: skip


def _name(table: TableDef) -> str:
    return f"{table.db}.{table.name}"
