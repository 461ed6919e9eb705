"""One DDL under filters and routes: whether it runs on the target, as which text, and what it changes there.

Every name is judged, old and new (R-28). A DDL that would cost one table of many sources the rows of the others never
runs (R-15). What is unexpectedly left out carries an alert.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from binlake.dialect import Known, needs_standard, put_target_names, session_db, standard_text
from binlake.dialect.classify import classify
from binlake.errors import SchemaError
from binlake.rows.schema import Action, DdlJob, TableDef
from binlake.rows.schema.delta import Definitions
from binlake.rows.schema.names import fold_name, fold_pair
from binlake.statements.literal import qualified
from binlake.window.definitions import EVENTS, EXTRACT, FILTERED, IGNORED, RENAMED_IN, SYNC_DDL, LandedDdl
from binlake.window.joined import Conflict, join_tables
from binlake.window.optimistic import SharedChange, join_change
from binlake.window.spelling import Spelling
from binlake.window.targets import Naming, RowLayout, TargetTables, find_widest, rename_database

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
class Case:
    """A DDL that changed the source's schema: `ddl` still has the names, text and definitions of the source."""

    ddl: LandedDdl
    job: DdlJob
    names: Spelling

    @property
    def place(self) -> tuple[str, str]:
        """(db, table) of the job, as the definitions spell them."""
        touched = (*self.ddl.after.tables, *self.ddl.before.tables)
        return self.names.of_job(self.job.schema_name, self.job.table_name, touched)

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

    def judge(self, case: Case) -> LandedDdl:
        """`case.ddl` as the target has it, decided on.

        Raises SchemaError (a shard's DDL that cannot be merged), ConfigError, Permanent.
        """
        held = self._tables.neighbours(case.ddl.before.tables)
        self._tables.change(case.ddl.before, case.ddl.after)
        kept = self._replicated_sides(case)
        if kept is None:
            return self._skip(case, FILTERED, self._sides_when_filtered(case))
        shared = self._find_shared(case, kept, held)
        if case.ddl.commit_ts in self._ignored or case.ddl.commit_ts in self._rules.replacements:
            return self._leave_to_operator(case, self._sides_by_hand(kept) if shared else self._sides_at_target(kept))
        if not self._passes(case):
            removes = case.job.type in _REMOVES
            if case.job.type in _EMPTIES:
                for table in kept[0].tables:
                    self._rules.require_one_key(table, {"rows by DDL"})
            return self._skip(case, EVENTS, NO_CHANGE if removes or shared else self._sides_at_target(kept))
        verdict = (
            self._judge_rename_across_filter(case, kept, shared)
            or self._judge_shared_database(case)
            or self._judge_rename_in_place(case, kept)
        )
        if verdict is None and shared is not None:
            verdict = self._judge_shared(case, kept, held, shared)
        if verdict is not None:
            return verdict
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, self._sides_at_target(kept))
        if self._has_extracts(kept) and case.job.type in (Action.CREATE_TABLE, Action.CREATE_TABLES):
            return self._skip(case, EXTRACT, self._sides_at_target(kept), "create the table at the target by hand")
        return self._apply(case, kept)

    def _replicated_sides(self, case: Case) -> _Sides | None:
        """The definitions without tables that a filter leaves out; None when nothing is left."""
        before, after = (self._naming.kept(side.tables) for side in (case.ddl.before, case.ddl.after))
        if case.on_database or not (case.ddl.before.tables or case.ddl.after.tables):
            if not before and not after and not self._rules.keeps(*self._own_name(case)):
                return None
        elif not before and not after:
            return None
        return Definitions(case.ddl.before.databases, tuple(before)), Definitions(
            case.ddl.after.databases, tuple(after)
        )

    def _own_name(self, case: Case) -> tuple[str, str]:
        return case.place[0], "" if case.on_database else case.place[1]

    def _sides_when_filtered(self, case: Case) -> _Sides:
        # Under routes a name of the source may be that of another table at the target.
        return NO_CHANGE if self._rules.routes else (case.ddl.before, case.ddl.after)

    def _passes(self, case: Case) -> bool:
        """One name that passes is enough; a rename is judged by its old name."""
        if case.on_database:
            return self._rules.events.passes_ddl(case.place[0], "", case.job.type, case.ddl.query)
        tables = self._naming.kept(case.ddl.before.tables) or self._naming.kept(case.ddl.after.tables)
        names = [(table.db, table.name) for table in tables] or [case.place]
        return any(self._rules.events.passes_ddl(*name, case.job.type, case.ddl.query) for name in names)

    def _judge_rename_across_filter(self, case: Case, kept: _Sides, shared: TableDef | None) -> LandedDdl | None:
        """A rename of which one name only is replicated, when it is all that the DDL does."""
        if case.job.type not in (Action.RENAME_TABLE, Action.RENAME_TABLES):
            return None
        old, new = ({table.id for table in side.tables} for side in kept)
        if old & new:
            return None
        gone = kept[0].tables
        if old and shared is None and self._drops(gone):
            sides = self._sides_at_target((kept[0], NOTHING))
            judged = self._decide(case, "apply", "", self._drop_text(gone), sides)
            return replace(judged, db=sides[0].tables[0].db, table=sides[0].tables[0].name)
        if old:
            return self._skip(
                case, RENAMED_OUT, self._sides_at_target(kept), "its table stays at the target, unchanged"
            )
        why = f"{RENAMED_IN}: the target does not have this table's rows, or has old ones"
        return self._decide(case, "refused", why, case.ddl.query, self._sides_at_target(kept), _RENAMED_IN_ALERT)

    def _judge_rename_in_place(self, case: Case, kept: _Sides) -> LandedDdl | None:
        """A rename of a table whose name at the target stays: `log` to `LOG`, where a route gives both one name."""
        if case.job.type != Action.RENAME_TABLE or not kept[0].tables:
            return None
        was, now = ([self._naming.table(table.db, table.name) for table in side.tables] for side in kept)
        return (
            self._skip(case, "the target's name of the table stays", self._sides_at_target(kept))
            if was == now
            else None
        )

    def _drops(self, renamed_out: Collection[TableDef]) -> bool:
        tables = [table for table in renamed_out if table.kind == "table"]
        return self._rules.renamed_out == "drop" and self._rules.copies_ddl and len(tables) == len(renamed_out) > 0

    def _drop_text(self, tables: Collection[TableDef]) -> str:
        names = (qualified(*self._naming.table(table.db, table.name)) for table in tables)
        return f"DROP TABLE {', '.join(names)}"

    def _judge_shared_database(self, case: Case) -> LandedDdl | None:
        """A database of the target that other databases or tables of the source go into too."""
        if not case.on_database or not self._rules.routes:
            return None
        target = self._naming.database(case.place[0])
        others = sorted(self._tables.into(target) - {fold_name(case.job.schema_name)})
        if not others:
            return None
        what = f"{others[0]} goes into the database {target} too"
        alert = what if case.job.type == Action.DROP_SCHEMA else ""
        return self._skip(case, f"shared database: {what}", NO_CHANGE, alert)

    def _find_shared(self, case: Case, kept: _Sides, held: dict[int, list[TableDef]]) -> TableDef | None:
        """A table of the DDL whose target has other tables too; None = none has."""
        if not self._rules.routes or case.on_database:
            return None
        sides = [(table, held.get(table.id, [])) for table in kept[0].tables]
        sides += [(table, self._tables.sources(table)) for table in kept[1].tables]
        return next((table for table, all_of in sides if any(other.id != table.id for other in all_of)), None)

    def _sides_by_hand(self, kept: _Sides) -> _Sides:
        """What somebody's hand left at a shared target: the shape of its tables now, if it is still there."""
        found = []
        for table in kept[1].tables:
            shape = self._naming.merge([self._naming.definition(one) for one in self._tables.sources(table)])
            found.append(replace(shape, id=table.id, raw={**shape.raw, "id": table.id}))
        before, _ = self._sides_at_target(kept)
        return (before, Definitions((), tuple(found))) if found else NO_CHANGE

    def _judge_shared(
        self, case: Case, kept: _Sides, held: dict[int, list[TableDef]], shared: TableDef
    ) -> LandedDdl | None:
        """What to do where other tables of the source share the target; None = it runs as it is."""
        old, new = ({table.id: table for table in side.tables} for side in kept)
        if case.job.type in _REMOVES or not new:
            what = f"{_name(shared)} shares its target with other tables: its rows stay there"
            gone = old.get(shared.id)
            if self._joins and case.job.type == Action.DROP_TABLE and gone is not None and not new:
                return self._judge_joined(case, kept, (gone, None), held[gone.id], what)
            return self._skip(case, f"shared table: {what}", NO_CHANGE, what)
        if not old:
            others = [other for other in self._tables.sources(shared) if other.id != shared.id]
            if self._joins:
                return self._judge_joined(case, kept, (None, new[shared.id]), others)
            return self._judge_creation(case, shared)
        moved = [t for key, t in new.items() if key in old and self._target(old[key]) != self._target(t)]
        if moved or set(old) != set(new):
            raise self._unmergeable(case, "a rename or swap moves a table whose target has others too")
        if self._joins:
            key = next(iter(new))
            return self._judge_joined(case, kept, (old[key], new[key]), held[key])
        return self._judge_alteration(case, old, new, held)

    @property
    def _joins(self) -> bool:
        return self._rules.shard_mode == "optimistic"

    def _judge_joined(
        self,
        case: Case,
        kept: _Sides,
        change: tuple[TableDef | None, TableDef | None],
        was: list[TableDef],
        alert: str = "",
    ) -> LandedDdl:
        """As the joined definition changes by what the DDL makes of one table; `was`: all tables before it."""
        old, new = (self._naming.definition(one) if one is not None else None for one in change)
        now = self._tables.sources(next(one for one in change if one is not None))
        before, after = ([self._naming.definition(one) for one in some] for some in (was, now))
        try:
            # First under the names of the source: a conflict names them.
            for some in (was, now):
                join_tables(tuple(some))
            joined = join_change(SharedChange(old, new, before, after), case.ddl.query)
        except (Conflict, SchemaError) as error:
            raise self._unmergeable(case, f"shard-mode = optimistic: {error}") from None
        if joined.sql == "":
            what = alert or "the target has the shape that all its tables need"
            return self._skip(case, f"shared table: {what}", NO_CHANGE, alert)
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, joined.sides)
        if joined.sql is None:
            applied = self._apply(case, kept)
            return replace(applied, before=joined.sides[0], after=joined.sides[1])
        made = self._decide(case, "apply", "", joined.sql, joined.sides, alert)
        return replace(made, action=Action.MULTI_SCHEMA_CHANGE)

    def _judge_creation(self, case: Case, table: TableDef) -> LandedDdl:
        others = [other for other in self._tables.sources(table) if other.id != table.id]
        known = find_widest(others)
        if known is None or not RowLayout(known).holds(RowLayout(table)):
            raise self._unmergeable(case, "a table joins others at the target and has another shape")
        return self._skip(case, f"shared table: {_name(others[0])} made it already", NO_CHANGE)

    def _judge_alteration(
        self, case: Case, old: dict[int, TableDef], new: dict[int, TableDef], held: dict[int, list[TableDef]]
    ) -> LandedDdl | None:
        key = next(iter(new))
        sources = self._tables.sources(new[key])
        was, now = find_widest(held.get(key, [])), find_widest(sources)
        if was is None or now is None:
            raise self._unmergeable(case, "the tables that share a target differ in more than added columns")
        if RowLayout(was) == RowLayout(now):
            return self._skip(case, "shared table: the target has the shape that all its tables need", NO_CHANGE)
        if RowLayout(was) == RowLayout(old[key]) and RowLayout(now) == RowLayout(new[key]):
            return None
        raise self._unmergeable(case, "the DDL of one table does not bring the target from its shape to the next")

    def _has_extracts(self, kept: _Sides) -> bool:
        return any(self._rules.routes.extracted(table.db, table.name) for table in kept[1].tables)

    def _target(self, table: TableDef) -> tuple[str, str]:
        return fold_pair(self._naming.table(table.db, table.name))

    def _leave_to_operator(self, case: Case, sides: _Sides) -> LandedDdl:
        sql = self._rules.replacements.get(case.ddl.commit_ts)
        if sql is None:
            return self._skip(case, IGNORED, sides)
        alert = "the target runs the statement of ddl-replacement; the schema history keeps the source's definitions"
        return self._decide(case, "replaced", "", sql, sides, alert)

    def _apply(self, case: Case, kept: _Sides) -> LandedDdl:
        query = case.ddl.query
        try:
            known = case.names.known() if needs_standard(query, case.job.query) else NOTHING_KNOWN
            query = standard_text(query, case.job.query, known)
            sql, alert = self._routed_text(case, query, kept)
            there = {table.id for table in kept[1].tables}
            left = [table for table in kept[0].tables if table.id not in there]
            if case.job.type == Action.RENAME_TABLES and self._drops(left):
                sql, alert = f"{self._drop_text(left)}; {sql}", ""
        except SchemaError as error:
            # The plan of the window goes on: who applies it stops at this DDL alone, and says what to do.
            return self._decide(case, "refused", error.message, query, self._sides_at_target(kept), error.message)
        before, after = self._sides_at_target(kept)
        if case.job.type == Action.DROP_SCHEMA and self._rules.routes:
            gone = {fold_name(db.name) for db in before.databases}
            stay = [table for table in before.tables if fold_name(table.db) not in gone]
            before = Definitions(before.databases, tuple(t for t in before.tables if fold_name(t.db) in gone))
            alert = f"{_name(stay[0])} of another database stays at the target" if stay else alert
        return self._decide(case, "apply", "", sql, (before, after), alert)

    def _routed_text(self, case: Case, query: str, kept: _Sides) -> tuple[str, str]:
        """(text, alert): `query` with the target's names, without the parts of a list that a filter leaves out."""
        found = classify(query)
        home = session_db(found, case.ddl.before.tables, case.place[0])
        own: list[tuple[str, str]] = []
        alert = ""
        if case.job.type == Action.RENAME_TABLES:
            names = [(db or home, name) for db, name in found.tables]
            own = [name for name in names if self._rules.keeps(*name)]
            if len(own) < len(names):
                left = next(name for name in names if not self._rules.keeps(*name))
                alert = f"the renames of or to {'.'.join(left)} are left out"
        elif case.job.type in (Action.DROP_TABLE, Action.DROP_VIEW, Action.DROP_SEQUENCE):
            own = [(table.db, table.name) for table in kept[0].tables]
        text = put_target_names(query, home, case.names, own)
        return self._without_former(case, kept) + text, alert

    def _without_former(self, case: Case, kept: _Sides) -> str:
        """CREATE OR REPLACE VIEW takes the place of a view spelled otherwise, which a target would keep beside it."""
        if case.job.type != Action.CREATE_VIEW:
            return ""
        now = {(table.db, table.name) for table in kept[1].tables}
        former = [table for table in kept[0].tables if (table.db, table.name) not in now]
        names = (qualified(*self._naming.table(table.db, table.name)) for table in former)
        return "".join(f"DROP VIEW IF EXISTS {name}; " for name in names)

    def _sides_at_target(self, sides: _Sides) -> _Sides:
        """Definitions of the source as those of the target."""
        if not self._rules.routes:
            return sides
        before, after = (
            Definitions(
                tuple(rename_database(db, self._naming.database(db.name)) for db in side.databases),
                tuple(self._naming.definition(table) for table in side.tables),
            )
            for side in sides
        )
        return before, after

    def _skip(self, case: Case, reason: str, sides: _Sides, alert: str = "") -> LandedDdl:
        return self._decide(case, "skip", reason, case.ddl.query, sides, alert)

    def _decide(self, case: Case, decision: str, reason: str, sql: str, sides: _Sides, alert: str = "") -> LandedDdl:
        db, table = case.place
        if self._rules.routes and self._rules.keeps(*self._own_name(case)):
            db, table = (self._naming.database(db), "") if case.on_database else self._naming.table(db, table)
        before, after = sides
        return replace(
            case.ddl,
            db=db,
            table=table,
            sql=sql,
            decision=decision,
            reason=reason,
            before=before,
            after=after,
            alert=alert,
        )

    def _unmergeable(self, case: Case, what: str) -> SchemaError:
        return SchemaError(
            f"a DDL of a table that shares its target cannot be merged: {what}",
            where={"commit_ts": case.ddl.commit_ts, "table": ".".join(case.place),
                   "query": case.ddl.query[:200]},
            hint="bring the target to the shape of all its tables by hand and name the commit_ts in"
            " filter.ignore-txn-commit-ts",
        )  # fmt: skip


def _name(table: TableDef) -> str:
    return f"{table.db}.{table.name}"
