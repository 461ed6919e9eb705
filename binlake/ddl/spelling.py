"""Spells the source's names as its definitions do, whatever letter case a statement or a job uses.

TiDB compares names case-insensitively, and its jobs have them in lower case. A target on Linux distinguishes `Users`
from `users`.
"""

from __future__ import annotations

from dataclasses import dataclass

from binlake.ddl.targets import Name, Naming
from binlake.dialect import KnownNames
from binlake.rows.schema import SchemaState, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair


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
