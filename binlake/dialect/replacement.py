"""Statements of an operator that replace a DDL (ddl-replacement) or run between changes (ddl-injection).

Source: MISSION S4-46, U-15. Each must be a single DDL whose tables are known: after a crash, Binlake decides by the
definitions of these tables whether it ran (hazards R-04). Several statements, or one that is not a DDL, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from binlake.common.sections import DdlInjection, DdlReplacement
from binlake.dialect.classify import Classified, DdlKind, classify_tokens, names_object_first
from binlake.dialect.names import DATABASES, find_names_beside_altered, put_target_names, split_statements
from binlake.dialect.tokens import Token, TokenKind, tokenize
from binlake.errors import ConfigError, SchemaError

Name = tuple[str, str]
"""(database, table); an empty table means the database."""


@dataclass(frozen=True)
class Injection:
    """`sql` runs before the first change at or after `commit_ts`; `db`: the database of unqualified names."""

    commit_ts: int
    sql: str
    db: str


def parse_replacements(config: Iterable[DdlReplacement]) -> Mapping[int, str]:
    """commit_ts -> statement without a final semicolon. Raises ConfigError for an invalid replacement."""
    replacements: dict[int, str] = {}
    for entry in config:
        commit_ts = int(entry.commit_ts)
        where = {"ddl-replacement": entry.commit_ts, "sql": entry.sql[:200]}
        if commit_ts in replacements:
            raise ConfigError("two replacements for one commit_ts", where=where)
        replacements[commit_ts] = _require_one_ddl(
            entry.sql,
            "replacement",
            where,
            "run anything else at the target by hand, and list the commit_ts in filter.ignore-txn-commit-ts",
        )
    return replacements


def parse_injections(config: Iterable[DdlInjection]) -> tuple[Injection, ...]:
    """The injections by commit_ts, then in the order of `config`. Raises ConfigError for an invalid injection."""
    injections = []
    for entry in config:
        where = {"ddl-injection": entry.commit_ts, "sql": entry.sql[:200]}
        hint = "run anything else at the target by hand, while the window waits at window.stop-at"
        injections.append(
            Injection(int(entry.commit_ts), _require_one_ddl(entry.sql, "injection", where, hint), entry.db)
        )
    return tuple(sorted(injections, key=lambda injection: injection.commit_ts))


def _require_one_ddl(sql: str, what: str, where: Mapping[str, str], hint: str) -> str:
    """Check that `sql` is a single DDL and remove its final semicolon. Raises ConfigError."""
    try:
        classified = _classify_one(sql)
    except SchemaError as error:
        raise ConfigError(f"the {what} cannot be read: {error.message}", where=where) from None
    if classified is None or classified.kind is DdlKind.OTHER:
        raise ConfigError(f"the {what} is not one DDL statement", where=where, hint=hint)
    if not names_object_first(_tokenize_one(sql)):
        raise ConfigError(f"the {what} contains another statement, or an unknown word", where=where, hint=hint)
    return sql.strip().rstrip(";").rstrip()


def find_replaced_names(sql: str, db: str) -> tuple[Name, ...]:
    """The objects that an operator's statement creates, changes or removes; `db`: the database of unqualified names."""
    tokens = _tokenize_one(sql)
    if not tokens:
        return ()
    statement = classify_tokens(tokens)
    if statement.kind in DATABASES:
        return tuple((name, "") for _, name in statement.tables)
    return tuple((own or db, name) for own, name in (*statement.tables, *find_names_beside_altered(tokens, statement)))


def empties_table(sql: str) -> bool:
    """True for TRUNCATE TABLE, which may run twice without a different result."""
    statement = _classify_one(sql)
    return statement is not None and statement.kind is DdlKind.TRUNCATE_TABLE


def find_altered_table(sql: str, db: str) -> Name | None:
    """The only table that a statement alters, None for another statement; `db`: the database of an unqualified name."""
    statement = _classify_one(sql)
    if statement is None or statement.kind not in (DdlKind.ALTER_TABLE, DdlKind.CREATE_INDEX, DdlKind.DROP_INDEX):
        return None
    names = find_replaced_names(sql, db)
    return names[0] if len(names) == 1 else None


def makes_or_drops_table(sql: str) -> bool:
    """True for CREATE and DROP TABLE: whether the table exists shows whether the statement ran."""
    statement = _classify_one(sql)
    return statement is not None and statement.kind in (
        DdlKind.CREATE_TABLE,
        DdlKind.CREATE_TABLE_LIKE,
        DdlKind.DROP_TABLE,
    )


def put_table_name(sql: str, db: str, table: Name, other: Name) -> str:
    """`sql` with the name `other` in place of `table`; all names are qualified."""
    return put_target_names(sql, db, _RenameOne(table, other))


@dataclass(frozen=True)
class _RenameOne:
    """Renames one table and leaves all other names unchanged."""

    of: Name
    other: Name

    def map_table(self, db: str, table: str, *, new: bool = False) -> Name:
        del new
        return self.other if (db, table) == self.of else (db, table)

    def map_database(self, db: str) -> str:
        return db


def needs_database(sql: str) -> bool:
    """True if unqualified names of the statement mean tables of the DDL's database."""
    statement = _classify_one(sql)
    return statement is not None and statement.kind not in DATABASES


def _classify_one(sql: str) -> Classified | None:
    """Classify the statement; None if the text is not exactly one statement."""
    tokens = _tokenize_one(sql)
    return classify_tokens(tokens) if tokens else None


def _tokenize_one(sql: str) -> list[Token]:
    """The tokens of the only statement; empty if the text has none or several."""
    tokens = [token for token in tokenize(sql) if token.kind not in (TokenKind.COMMENT, TokenKind.FEATURE)]
    parts = split_statements(tokens)
    return parts[0] if len(parts) == 1 else []
