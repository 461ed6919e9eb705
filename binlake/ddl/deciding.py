"""Writes the decision on one DDL as a row of the table `ddl`: text, names and definitions.

Names are spelled as the source's definitions spell them (`Spelling`), whatever letter case a statement or a job uses:
TiDB compares names case-insensitively, and its jobs have them in lower case, but a target on Linux distinguishes
`Users` from `users`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from binlake.ddl.definitions import LandedDdl
from binlake.ddl.joined import Conflict, join_tables
from binlake.ddl.targets import Name, Naming, describe_lacks, rename_database
from binlake.dialect import KnownNames, find_session_db, needs_standard, put_target_names, standardize_text
from binlake.dialect.classify import classify
from binlake.errors import SchemaError
from binlake.rows.schema import Action, DdlJob, SchemaState, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rows.schema.state import DdlSide
from binlake.statements.literal import quote_qualified_name

Sides = tuple[DdlSide, DdlSide]
NOTHING = DdlSide((), ())
NO_CHANGE = (NOTHING, NOTHING)
NOTHING_KNOWN = KnownNames(frozenset(), frozenset())
_BY_HAND = (
    "alter the target by hand to the shape of all its tables and name the commit_ts in filter.ignore-txn-commit-ts"
)
_JOIN = (
    'set shard-mode = "optimistic" and run it again: the target then has the joined definition, with the columns of all'
    " its tables"
)
DATABASE_ACTIONS = frozenset({Action.CREATE_SCHEMA, Action.DROP_SCHEMA, Action.SCHEMA_CHARSET, Action.RECOVER_SCHEMA})


@dataclass(frozen=True)
class Spelling:
    """The names that a DDL may use: those of the schemas `before` and `after` it. `naming` maps them to the target's.

    Implements `binlake.dialect.StatementNames`.
    """

    before: SchemaState
    after: SchemaState
    naming: Naming

    def spell_source_table(self, db: str, table: str, *, new: bool = False) -> Name:
        """(db, table) at the source. A `new` or unknown table is spelled as in the statement."""
        known = None if new else self.before.find(db, table) or self.after.find(db, table)
        return (known.db, known.name) if known is not None else (self.spell_source_database(db), table)

    def spell_source_database(self, db: str) -> str:
        """The database at the source."""
        known = self.before.find_database(db) or self.after.find_database(db)
        return db if known is None else known.name

    def map_table(self, db: str, table: str, *, new: bool = False) -> Name:
        """(db, table) at the target. Raises ConfigError."""
        return self.naming.map_table(*self.spell_source_table(db, table, new=new))

    def map_database(self, db: str) -> str:
        """The database at the target. Raises ConfigError."""
        return self.naming.map_database(self.spell_source_database(db))

    def collect_known(self) -> KnownNames:
        """All names and texts that a DDL may use."""
        states = (self.before, self.after)
        databases = [db.name for state in states for db in state.list_databases()]
        return KnownNames.of(databases, [table for state in states for table in state.list_tables()])

    def spell_job_table(self, db: str, table: str, touched: tuple[TableDef, ...]) -> Name:
        """The spelled names of a job. A rename's job has the new database and the old table, so match either way."""
        exact = next((each for each in touched if fold_pair((each.db, each.name)) == fold_pair((db, table))), None)
        named = exact or next((each for each in touched if fold_name(each.name) == fold_name(table)), None)
        return self.spell_source_database(db), named.name if named else table


@dataclass(frozen=True)
class Case:
    """A DDL that changed the source's schema. `ddl` still has the source's names, text and definitions."""

    ddl: LandedDdl
    job: DdlJob
    names: Spelling

    @property
    def name(self) -> tuple[str, str]:
        """(db, table) of the job, spelled as in the definitions."""
        touched = (*self.ddl.after.tables, *self.ddl.before.tables)
        return self.names.spell_job_table(self.job.schema_name, self.job.table_name, touched)

    @property
    def on_database(self) -> bool:
        """True for CREATE, ALTER and DROP DATABASE."""
        return self.job.type in DATABASE_ACTIONS


class Decider:
    """Makes the rows of decisions, with the target's names from `naming`."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._rules = naming.rules

    def _build_rule_name(self, case: Case) -> tuple[str, str]:
        return case.name[0], "" if case.on_database else case.name[1]

    def _find_target_name(self, table: TableDef) -> tuple[str, str]:
        return fold_pair(self._naming.map_table(table.db, table.name))

    def _is_dropped_when_renamed_out(self, renamed_out: Collection[TableDef]) -> bool:
        tables = [table for table in renamed_out if table.kind == "table"]
        return self._rules.renamed_out == "drop" and self._rules.copies_ddl and len(tables) == len(renamed_out) > 0

    def _write_drop(self, tables: Collection[TableDef]) -> str:
        names = (quote_qualified_name(*self._naming.map_table(table.db, table.name)) for table in tables)
        return f"DROP TABLE {', '.join(names)}"

    def _apply(self, case: Case, sides: Sides) -> LandedDdl:
        query = case.ddl.query
        try:
            known = case.names.collect_known() if needs_standard(query, case.job.query) else NOTHING_KNOWN
            query = standardize_text(query, case.job.query, known)
            sql, alert = self._route_text(case, query, sides)
            remaining = {table.id for table in sides[1].tables}
            removed = [table for table in sides[0].tables if table.id not in remaining]
            if case.job.type == Action.RENAME_TABLES and self._is_dropped_when_renamed_out(removed):
                sql, alert = f"{self._write_drop(removed)}; {sql}", ""
        except SchemaError as error:
            # Planning continues. Only the apply stops at this DDL, with a message that says what to do.
            return self._decide(case, "refused", error.message, query, self._map_sides_to_target(sides), error.message)
        before, after = self._map_sides_to_target(sides)
        if case.job.type == Action.DROP_SCHEMA and self._rules.routes:
            dropped = {fold_name(db.name) for db in before.databases}
            stay = [table for table in before.tables if fold_name(table.db) not in dropped]
            before = DdlSide(before.databases, tuple(t for t in before.tables if fold_name(t.db) in dropped))
            alert = f"{format_table_name(stay[0])} of another database stays at the target" if stay else alert
        return self._decide(case, "apply", "", sql, (before, after), alert)

    def _route_text(self, case: Case, query: str, sides: Sides) -> tuple[str, str]:
        """(text, alert): `query` with the target's names, without the list items that a filter leaves out."""
        statement = classify(query)
        home = find_session_db(statement, case.ddl.before.tables, case.name[0])
        own_names: list[tuple[str, str]] = []
        alert = ""
        if case.job.type == Action.RENAME_TABLES:
            names = [(db or home, name) for db, name in statement.tables]
            own_names = [name for name in names if self._rules.keeps(*name)]
            if len(own_names) < len(names):
                left = next(name for name in names if not self._rules.keeps(*name))
                alert = f"the renames of or to {'.'.join(left)} are left out"
        elif case.job.type in (Action.DROP_TABLE, Action.DROP_VIEW, Action.DROP_SEQUENCE):
            own_names = [(table.db, table.name) for table in sides[0].tables]
        text = put_target_names(query, home, case.names, own_names)
        return self._drop_former_view(case, sides) + text, alert

    def _drop_former_view(self, case: Case, sides: Sides) -> str:
        """A DROP of the view that CREATE OR REPLACE VIEW replaces under a differently spelled name, else empty."""
        if case.job.type != Action.CREATE_VIEW:
            return ""
        now = {(table.db, table.name) for table in sides[1].tables}
        former = [table for table in sides[0].tables if (table.db, table.name) not in now]
        names = (quote_qualified_name(*self._naming.map_table(table.db, table.name)) for table in former)
        return "".join(f"DROP VIEW IF EXISTS {name}; " for name in names)

    def _map_sides_to_target(self, sides: Sides) -> Sides:
        """The source's definitions with the target's names."""
        if not self._rules.routes:
            return sides
        before, after = (
            DdlSide(
                tuple(rename_database(db, self._naming.map_database(db.name)) for db in side.databases),
                tuple(self._naming.map_definition(table) for table in side.tables),
            )
            for side in sides
        )
        return before, after

    def _skip(self, case: Case, reason: str, sides: Sides, alert: str = "") -> LandedDdl:
        return self._decide(case, "skip", reason, case.ddl.query, sides, alert)

    def _decide(self, case: Case, decision: str, reason: str, sql: str, sides: Sides, alert: str = "") -> LandedDdl:
        db, table = case.name
        if self._rules.routes and self._rules.keeps(*self._build_rule_name(case)):
            db, table = (self._naming.map_database(db), "") if case.on_database else self._naming.map_table(db, table)
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

    def _build_unlike_error(self, case: Case, what: str, tables: Sequence[TableDef]) -> SchemaError:
        """The stop where none of `tables`, which share a target, holds the rows of all."""
        what = f"{what}: {describe_lacks(tables)}"
        try:
            join_tables(tuple(self._naming.map_definition(table) for table in tables))
        except (Conflict, SchemaError) as error:
            return self._build_unmergeable_error(case, f"{what}; nor do they have a joined definition: {error}")
        return self._build_unmergeable_error(case, what, _JOIN)

    def _build_unmergeable_error(self, case: Case, what: str, hint: str = _BY_HAND) -> SchemaError:
        return SchemaError(
            f"a DDL of a table that shares its target cannot be merged: {what}",
            where={"commit_ts": case.ddl.commit_ts, "table": ".".join(case.name),
                   "query": case.ddl.query[:200]},
            hint=hint,
        )  # fmt: skip


def format_table_name(table: TableDef) -> str:
    """`db.table`, for people."""
    return f"{table.db}.{table.name}"
