"""Reads the target's definitions, compares them with what the schema history expects, and digests them.

Sources: hazards R-04, R-13, R-18, R-28; DESIGN 3.6, 3.9. A name is (database, table), or (database, "") for the
database itself. The digest covers everything that SHOW CREATE shows. `binlake.target.ddl.proof` says what they prove
about a DDL.

Definitions do not show rows that a DDL should have left none of: a table that it created or truncated is empty. So this
is checked too: an error of such a DDL is ignored only if the target proves the result, and a `CREATE TABLE IF NOT
EXISTS` that found an old table is noticed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from binlake.common.sql import Dialect
from binlake.config.servers import TargetSection
from binlake.errors import Drift, TargetRefused
from binlake.mysqlbinlog.definitions.descriptions import write_bytes_in_hex
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rows.schema.state import DdlSide
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.definitions.forms import (
    Name,
    TableForm,
    build_expected_form,
    list_missing_indexes,
    read_table_forms,
)
from binlake.target.definitions.structure import compare_structures, find_option, list_refusals
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession

Emptied = Mapping[Name, tuple[str, ...]]
"""Tables without rows: (db, table) -> the partitions that have none; () = the whole table."""

_MAKES = frozenset({Action.CREATE_TABLE, Action.CREATE_TABLES, Action.TRUNCATE_TABLE})
_MOVES = frozenset({Action.TRUNCATE_TABLE, Action.TRUNCATE_PARTITION, Action.DROP_PARTITION, Action.EXCHANGE_PARTITION})
_NO_PARTITION = frozenset({1505, 1735, 1747})
"""Errors for a table without partitions or without a partition of that name."""
_NO_PRIVILEGE = frozenset({1044, 1109, 1115, 1142, 1227})


@dataclass(frozen=True)
class ExpectedState:
    """The expected state of the target: which databases exist, and the forms of tables (None = must be absent).

    `empty`: tables or partitions without rows. `moves_rows`: definitions alone do not show what a DDL did.
    """

    databases: Mapping[str, bool] = field(default_factory=dict)
    tables: Mapping[Name, TableForm | None] = field(default_factory=dict)
    empty: Emptied = field(default_factory=dict)
    moves_rows: bool = False

    @property
    def names(self) -> list[Name]:
        """The names for `read_definitions` and `digest_definitions`."""
        return [*((db, "") for db in self.databases), *self.tables]

    @property
    def is_in_rows_alone(self) -> bool:
        """True when neither definitions nor an empty table show the DDL: EXCHANGE and DROP PARTITION."""
        return self.moves_rows and not self.empty

    def to_json(self) -> str:
        """JSON, as stored in an intent."""
        tables = [[db, name, form.to_dict() if form else None] for (db, name), form in self.tables.items()]
        rows = {"empty": [[*name, parts] for name, parts in self.empty.items()], "moves_rows": self.moves_rows}
        return json.dumps({"databases": dict(self.databases), "tables": tables, **rows}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ExpectedState:
        """Parse what `to_json` wrote."""
        raw = json.loads(text)
        tables = {(db, name): TableForm.from_dict(form) if form else None for db, name, form in raw["tables"]}
        # An older version wrote nothing about rows.
        empty = {(db, name): tuple(parts) for db, name, parts in raw.get("empty", ())}
        return cls(raw["databases"], tables, empty, raw.get("moves_rows", False))


@dataclass(frozen=True)
class Actual:
    """The present state of the target, by name; a missing table is None, a missing database False."""

    databases: Mapping[str, bool]
    tables: Mapping[Name, TableForm | None]


def expect_tables(
    tables: Iterable[TableDef],
    dialect: Dialect,
    *,
    absent: Iterable[Name] = (),
    databases: Mapping[str, bool] | None = None,
) -> ExpectedState:
    """The forms of `tables` in `dialect`. `absent` names must not exist; `databases` must (True) or must not exist."""
    forms: dict[Name, TableForm | None] = dict.fromkeys(absent)
    forms |= {(table.db, table.name): build_expected_form(table, dialect) for table in tables}
    return ExpectedState(dict(databases or {}), forms)


def expect_after_ddl(before: DdlSide, after: DdlSide, dialect: Dialect, action: int = 0) -> ExpectedState:
    """The result of a DDL of the kind `action`, from the definitions it touched (hazards R-04)."""
    databases = {db.name: False for db in before.databases} | {db.name: True for db in after.databases}
    # DROP DATABASE drops its tables one by one: only the missing database shows that it is complete.
    dropped = {fold_name(name) for name, there in databases.items() if not there}
    remaining = {fold_pair((table.db, table.name)) for table in after.tables}
    removed = [(table.db, table.name) for table in before.tables if fold_name(table.db) not in dropped]
    absent = [name for name in removed if fold_pair(name) not in remaining]
    expected = expect_tables(after.tables, dialect, absent=absent, databases=databases)
    return replace(expected, empty=find_emptied_tables(action, before, after), moves_rows=moves_rows(action))


def read_definitions(session: TargetSession, names: Iterable[Name], dialect: Dialect) -> Actual:
    """The target's definitions of `names`."""
    every = list(dict.fromkeys(names))
    databases = {db: _read_collation(session, db) is not None for db, table in every if not table}
    return Actual(databases, read_table_forms(session, [name for name in every if name[1]], dialect))


def compare_definitions(
    expected: ExpectedState, actual: Actual, *, indexes: bool = False, target: TargetSection | None = None
) -> list[str]:
    """All differences that `target` does not accept, for people. `indexes` adds missing plain indexes (after a DDL)."""

    def compare(name: Name, form: TableForm | None, there: TableForm | None) -> list[str]:
        accepted = _list_accepted_differences(target, name)
        return [text for text in _list_differences(form, there, indexes) if text not in accepted]

    return [*_compare_databases(expected, actual), *_compare_tables(expected, actual, compare)]


def find_left_behind(session: TargetSession, expected: ExpectedState, dialect: Dialect) -> list[str]:
    """The tables, databases and rows that a DDL should have removed but that still exist, for people."""
    leftovers = ExpectedState(
        {name: False for name, there in expected.databases.items() if not there},
        {name: None for name, form in expected.tables.items() if form is None},
    )
    return [
        *compare_definitions(leftovers, read_definitions(session, leftovers.names, dialect)),
        *find_remaining_rows(session, expected.empty),
    ]


def find_losing_tables(target: TargetSection, expected: ExpectedState, actual: Actual) -> list[Name]:
    """The tables that `find_losses` names."""
    own = ((name, ExpectedState(tables={name: form})) for name, form in expected.tables.items())
    return [name for name, alone in own if find_losses(target, alone, actual)]


def find_losses(target: TargetSection, expected: ExpectedState, actual: Actual) -> list[str]:
    """Differences that can lose rows or values and are not accepted, for people (hazards R-13)."""

    def compare(name: Name, form: TableForm | None, there: TableForm | None) -> list[str]:
        if form is None:
            return _list_differences(form, there, indexes=False)
        return list_refusals(compare_structures(form, there), _list_accepted_differences(target, name))

    return [*_compare_databases(expected, actual), *_compare_tables(expected, actual, compare)]


def require_definitions(session: TargetSession, target: TargetSection, tables: Iterable[TableDef]) -> None:
    """Check tables before rows are written. Raises Drift that names the differences (hazards R-13, R-18)."""
    expected = expect_tables(tables, target.db_type)
    losses = find_losses(target, expected, read_definitions(session, expected.names, target.db_type))
    if losses:
        raise build_drift_error(losses, {"target": session.place})


def build_drift_error(differences: list[str], where: Mapping[str, object]) -> Drift:
    """The error for the differences of `find_losses`; it names the first ones."""
    return Drift(
        "the target's definitions differ from the source's: " + "; ".join(differences[:5]),
        where={**where, "differences": len(differences)},
        hint="`binlake preflight` shows all differences and the choices: alter the target to match, keep its own values"
        " with preserve, leave columns out with sync-mode, or accept a difference in target.tables; then run the window"
        " again, from compact on. `binlake table aside` lets the other tables continue without this one, even in an"
        " open window (filter.ignore-table affects only windows that are not merged yet)",
    )


def _list_accepted_differences(target: TargetSection | None, name: Name) -> frozenset[str]:
    option = None if target is None else find_option(target, name)
    return frozenset(option.accept) if option else frozenset()


def _compare_databases(expected: ExpectedState, actual: Actual) -> list[str]:
    return [
        f"database {name} is {'missing' if there else 'still there'}"
        for name, there in expected.databases.items()
        if actual.databases.get(name, False) != there
    ]


def _compare_tables(
    expected: ExpectedState, actual: Actual, found: Callable[[Name, TableForm | None, TableForm | None], list[str]]
) -> list[str]:
    forms = expected.tables.items()
    return [
        f"{name[0]}.{name[1]}: {text}" for name, form in forms for text in found(name, form, actual.tables.get(name))
    ]


def digest_definitions(session: TargetSession, names: Iterable[Name]) -> str:
    """SHA-256 (hex) of the present definitions of `names`; a missing table is digested as missing."""
    return hashlib.sha256("\0".join(_describe_definitions(session, names)).encode()).hexdigest()


def read_table_numbers(session: TargetSession, names: Iterable[Name], dialect: Dialect) -> dict[str, str] | None:
    """Stored name -> the engine's number, of each of `names` that is a table and of its partitions.

    None if they cannot be read (PROCESS privilege).
    """
    numbers_of_all: dict[str, str] = {}
    for name in names:
        if name[1] and read_create_statement(session, name) is not None:
            numbers = _read_numbers(session, name, dialect)
            if not numbers:
                return None
            numbers_of_all |= numbers
    return numbers_of_all


def _list_differences(expected: TableForm | None, actual: TableForm | None, indexes: bool) -> list[str]:
    if expected is None:
        return [] if actual is None else [f"the {actual.kind} is still there"]
    differences = sorted(difference.text for difference in compare_structures(expected, actual))
    return differences + list_missing_indexes(expected, actual) if indexes and actual is not None else differences


def _describe_definitions(session: TargetSession, names: Iterable[Name]) -> Iterable[str]:
    for name in sorted(set(names)):
        if name[1]:
            yield f"{name[0]}.{name[1]}\0{read_create_statement(session, name)}"
        else:
            yield f"{name[0]}\0{_read_collation(session, name[0])}"


def _read_collation(session: TargetSession, name: str) -> str | None:
    sql = "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
    collation: str | None = session.fetch_value(sql, (name,))
    return collation


def read_create_statement(session: TargetSession, name: Name) -> str | None:
    """SHOW CREATE of a table, without its next AUTO_INCREMENT; None if it is missing. Raises TargetRefused."""
    try:
        # For a view the result has two more columns.
        _, text, *_ = session.fetch_rows(f"SHOW CREATE TABLE {quote_qualified_name(*name)}")[0]
    except TargetRefused as error:
        if get_error_code(error) in MISSING:
            return None
        raise
    # The next AUTO_INCREMENT number changes with the rows.
    return re.sub(r" AUTO_INCREMENT=\d+", "", write_bytes_in_hex(str(text)))


def _read_numbers(session: TargetSession, name: Name, dialect: Dialect) -> dict[str, str]:
    """The numbers of one table and its partitions; empty if they cannot be read."""
    try:
        if dialect == "tidb":
            rows = session.fetch_rows(
                "SELECT TABLE_NAME, TIDB_TABLE_ID FROM information_schema.TABLES"
                " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s UNION ALL"
                " SELECT CONCAT(TABLE_NAME, '#', PARTITION_NAME), TIDB_PARTITION_ID FROM information_schema.PARTITIONS"
                " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND PARTITION_NAME IS NOT NULL",
                (*name, *name),
            )
        else:
            view = "INNODB_SYS_TABLES" if dialect == "mariadb" else "INNODB_TABLES"
            stored = "/".join(_write_file_name(session, part) for part in name)
            sql = f"SELECT NAME, TABLE_ID FROM information_schema.{view} WHERE NAME = %s OR NAME LIKE %s"
            rows = session.fetch_rows(sql, (stored, stored.replace("_", "\\_") + "#%"))
    except TargetRefused as error:
        if get_error_code(error) in _NO_PRIVILEGE or "privilege" in error.message:
            return {}
        raise
    return {str(stored): str(number) for stored, number in rows}


def _write_file_name(session: TargetSession, name: str) -> str:
    """`name` as the server writes it in file names: other characters than letters, digits and _ as @xxxx or shorter."""
    if name.isascii():
        return "".join(c if c.isalnum() or c == "_" else f"@{ord(c):04x}" for c in name)
    # For many non-ASCII letters the server has a short form, as `@1O` for Ü.
    return bytes(session.fetch_value("SELECT CAST(CONVERT(%s USING filename) AS BINARY)", (name,))).decode("ascii")


def moves_rows(action: int) -> bool:
    """True for a DDL that removes or moves rows while definitions may stay the same. Its errors are never ignored."""
    return action in _MOVES


def find_emptied_tables(action: int, before: DdlSide, after: DdlSide) -> dict[Name, tuple[str, ...]]:
    """The tables or partitions that a DDL of kind `action` leaves without rows."""
    had = {table.id: table for table in before.tables}
    tables = [table for table in after.tables if table.kind == "table" and not table.raw.get("temp_table_type")]
    if action in _MAKES:
        return {(table.db, table.name): () for table in tables if table.id not in had}
    if action == Action.TRUNCATE_PARTITION:
        changed = ((table, tuple(_find_new_partitions(had[table.id], table))) for table in tables if table.id in had)
        return {(table.db, table.name): names for table, names in changed if names}
    return {}


def _find_new_partitions(before: TableDef, after: TableDef) -> Iterator[str]:
    """The names of truncated partitions: they have new ids under the same names."""
    for definition in (after.raw.get("partition") or {}).get("definitions") or ():
        if definition["id"] not in before.partition_ids:
            yield definition["name"]["O"]


def find_remaining_rows(session: TargetSession, emptied: Emptied) -> list[str]:
    """Which of `emptied` have rows at the target, for people. A missing table has no rows."""
    return [text for name, partitions in emptied.items() for text in _find_rows(session, name, partitions)]


def _find_rows(session: TargetSession, name: Name, partitions: tuple[str, ...]) -> Iterator[str]:
    only = f" PARTITION ({', '.join(map(quote_name, partitions))})" if partitions else ""
    where = f" in the partitions {', '.join(partitions)}" if partitions else ""
    try:
        if session.fetch_rows(f"SELECT 1 FROM {quote_qualified_name(*name)}{only} LIMIT 1"):
            yield f"{name[0]}.{name[1]} has rows{where}, but should have none"
    except TargetRefused as error:
        if get_error_code(error) in _NO_PARTITION:
            yield f"{name[0]}.{name[1]}: no such partition{where}"
        elif get_error_code(error) not in MISSING:
            raise
