"""Write TiDB's DDL text in the dialect of the target. A DDL that the target cannot express raises a clear error.

Each change is a row of docs/understand/target-mapping.md. Sources:
DESIGN 4 (charset and collation of each CREATE), tidb-binlog 1.11, 1.14, 5.10; hazards R-28.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from binlake.base.dialects import Dialect
from binlake.dialect.bounds import put_stored_bounds, put_stored_partition
from binlake.dialect.checks import (
    drop_checks,
    is_check_spec,
    make_check_elements,
    make_check_specs,
    map_written_check_spec,
    map_written_checks,
    unwrap_not_enforced,
)
from binlake.dialect.classify import Classified, Kind, classify_tokens
from binlake.dialect.clauses import (
    drop_generation_if_written,
    lacks_charset,
    map_clauses,
    map_element,
    put_stored_type,
    require_target_collation,
)
from binlake.dialect.collations import find_target_charset
from binlake.dialect.columnnames import KEY_HEADS
from binlake.dialect.computed import find_computed_once, make_computed_once
from binlake.dialect.conversions import Alter
from binlake.dialect.defaults import find_fill_times, make_fill_specs, put_stored_default, put_stored_set_default
from binlake.dialect.errors import Unmappable
from binlake.dialect.expressions import makes_expression_index, names_expression_index
from binlake.dialect.foreign import make_foreign_key_indexes, spell_foreign_key
from binlake.dialect.madeup import list_requirements, reads_clock
from binlake.dialect.names import DATABASES, find_session_db, split_statements
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    find_closing,
    join_list,
    render,
    split_list,
    split_partitioning,
    tokenize,
    tokenize_with_spaces,
)
from binlake.errors import SchemaError, TargetRefused
from binlake.rows.schema import ColumnInfo, DbInfo, TableDef
from binlake.rows.schema.delta import Definitions
from binlake.rows.schema.names import fold_name, fold_pair
from binlake.statements.literal import quote, quote_name, quote_qualified_name
from binlake.statements.writtencolumns import is_computed


class RoutedDdl(Protocol):
    """A DDL whose names are the target's: its text, the database and table of its job, and the definitions."""

    @property
    def commit_ts(self) -> int:
        """The DDL's position."""

    @property
    def db(self) -> str:
        """The database of the DDL's job."""

    @property
    def table(self) -> str:
        """The table of the DDL's job."""

    @property
    def sql(self) -> str:
        """The DDL's text, with the target's names."""

    @property
    def before(self) -> Definitions:
        """The definitions that the DDL touches, as they were before it."""

    @property
    def after(self) -> Definitions:
        """The definitions that the DDL touches, as they are after it."""


@dataclass(frozen=True)
class MappedDdl:
    """The statements that the target runs, in order (a USE first), or none and the `reason` for it."""

    sql: tuple[str, ...]
    reason: str = ""


def map_ddl(ddl: RoutedDdl, dialect: Dialect) -> MappedDdl:
    """The statements for `dialect`. Raises TargetRefused naming commit_ts, the clause and the remedy.

    The text of a batch CREATE (job type 60: a restore creates many tables in one job) has several statements.
    """
    try:
        parts = split_statements(_tokenize_plain(ddl.sql, dialect))
    except SchemaError as error:
        raise make_inexpressible_error(ddl, dialect, error.message) from error
    mapped = [_map_one(tokens, ddl, dialect) for tokens in parts]
    applied = [one for one in mapped if one.sql]
    if len(mapped) == 1 or not applied:
        return mapped[0]
    return MappedDdl(tuple(dict.fromkeys(text for one in applied for text in one.sql)))


def _map_one(tokens: list[Token], ddl: RoutedDdl, dialect: Dialect) -> MappedDdl:
    statement = classify_tokens(tokens)
    tokens = put_stored_bounds(tokens, _find_altered_table(statement, ddl))
    reason = _find_skip_reason(tokens, statement, ddl, dialect)
    if reason:
        return MappedDdl((), reason)
    try:
        mapped = (
            _put_stored_defaults(tokens, statement, ddl)
            if dialect == "tidb"
            else _map_statement(tokens, statement, ddl, dialect)
        )
        if statement.kind is Kind.ALTER_TABLE and not mapped[statement.rest :]:
            return MappedDdl((), _explain_empty_alter(tokens[statement.rest :], ddl, dialect))
        text = _make_statements(mapped, statement, ddl, dialect)
    except Unmappable as error:
        raise make_inexpressible_error(ddl, dialect, error.clause) from None
    use = (
        ()
        if _is_on_database(statement.kind) or not ddl.db
        else (f"USE {quote_name(_find_session_db(statement, ddl))}",)
    )
    return MappedDdl((*use, *text))


def _make_statements(mapped: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> tuple[str, ...]:
    """The statements of one DDL; values that it fills or converts become what they became in the source's session."""
    if statement.kind is not Kind.ALTER_TABLE:
        return (render(mapped),)
    listed, partitioning = split_partitioning(mapped[statement.rest :])
    head, specs = mapped[: statement.rest], split_list(listed)
    before, after = _find_table(ddl.before, statement, ddl), _find_altered_table(statement, ddl)
    alter = Alter(head, before, after, ddl.after.session, dialect) if before is not None and after is not None else None
    added = _find_added_columns(ddl)
    plain = find_computed_once(before, after, ddl.after.session, dialect)
    clock = find_fill_times(added)
    if len(clock) > 1 and dialect == "tidb":
        raise Unmappable("several new columns that the source filled with different times")
    specs, later = make_fill_specs(specs, added, len(clock) > 1, dialect)
    specs, frozen = make_computed_once(specs, plain)
    later += frozen
    converted = alter.find_conversions(specs) if alter is not None else []
    if partitioning and not converted:
        specs[-1] = [*specs[-1], *partitioning]
    elif partitioning:
        # A conversion takes several statements; the partitioning is about their result.
        later = [*later, partitioning]
    if alter is not None and (converted or alter.changes_values):
        if clock and not alter.can_fill_times(converted):
            raise Unmappable("a conversion of values together with a new column that has the current time as default")
        texts = alter.make_statements(specs, converted, has_time=bool(clock))
    else:
        texts = (render([*head, *join_list(specs)]),)
    moment = f"UNIX_TIMESTAMP({quote(clock[0])})" if clock else ddl.after.session.moment
    if len(clock) == 1 or (moment and not clock and any(map(reads_clock, added))):
        texts = (f"SET SESSION timestamp = {moment}", *texts, "SET SESSION timestamp = DEFAULT")
    required = list_requirements(render(head[2:]).strip(), before, after, ddl.after.session) if before and after else []
    return (*required, *texts, *(render([*head, *spec]) for spec in later))


def _find_added_columns(ddl: RoutedDdl) -> list[ColumnInfo]:
    """The columns that the DDL, an ALTER, adds to a table."""
    had = {column.id for table in ddl.before.tables for column in table.columns}
    return [c for table in ddl.after.tables for c in table.columns if ddl.before.tables and c.id not in had]


def _find_altered_table(statement: Classified, ddl: RoutedDdl) -> TableDef | None:
    """The definition, after the DDL, of the table that its text names."""
    if not statement.tables:
        return None
    return _find_table(ddl.after, statement, ddl) or (ddl.after.tables[0] if len(ddl.after.tables) == 1 else None)


def _put_stored_defaults(tokens: list[Token], statement: Classified, ddl: RoutedDdl) -> list[Token]:
    """Put stored defaults into the tokens for a TiDB target, whose session has another time zone than the source's."""
    table = _find_altered_table(statement, ddl)
    if table is None or statement.kind not in (Kind.CREATE_TABLE, Kind.ALTER_TABLE):
        return tokens
    if statement.kind is Kind.ALTER_TABLE:
        specs = [_put_default_into_spec(part, table) for part in split_list(tokens[statement.rest :])]
        return [*tokens[: statement.rest], *join_list(specs)]
    end = find_closing(tokens, statement.rest)
    parts = [_map_tidb_column(part, table) for part in split_list(tokens[statement.rest + 1 : end])]
    return [*tokens[: statement.rest + 1], *join_list(parts), *tokens[end:]]


def _put_default_into_spec(part: list[Token], table: TableDef) -> list[Token]:
    column = _find_column_definition(part)
    if column:
        return [*part[: len(part) - len(column)], *_map_tidb_column(column, table)]
    return _set_default(part, table)


def _map_tidb_column(column: list[Token], table: TableDef) -> list[Token]:
    info = table.find_column(column[0].value)
    return put_stored_default(drop_generation_if_written(put_stored_type(column, info), info, table, "tidb"), info)


def _set_default(part: list[Token], table: TableDef) -> list[Token]:
    """Put the stored value into `ALTER [COLUMN] name SET DEFAULT value`."""
    if len(part) < 4 or not part[0].is_word("ALTER"):
        return part
    return put_stored_set_default(part, table.find_column(part[1 + part[1].is_word("COLUMN")].value))


def _find_session_db(statement: Classified, ddl: RoutedDdl) -> str:
    return find_session_db(statement, ddl.before.tables, ddl.db)


def _tokenize_plain(query: str, dialect: Dialect) -> list[Token]:
    """Tokens without comments; a TiDB target keeps TiDB's own clauses."""
    dropped = {TokenKind.COMMENT} if dialect == "tidb" else {TokenKind.COMMENT, TokenKind.FEATURE}
    return [token for token in unwrap_not_enforced(tokenize(query)) if token.kind not in dropped]


def _is_on_database(kind: Kind) -> bool:
    return kind in DATABASES


_NO_EXPRESSION_INDEX = "MariaDB has no index on an expression"
_SKIPPED_SPECS = {
    "ATTRIBUTES": "table attributes are TiDB's own",
    "CACHE": "cached tables are TiDB's own",
    "NOCACHE": "cached tables are TiDB's own",
    "COMPACT": "compaction of TiFlash is TiDB's own",
    "STATS_OPTIONS": "statistics options are TiDB's own",
}


def _find_skip_reason(tokens: Sequence[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> str:
    if not tokens or all(token.kind is TokenKind.FEATURE for token in tokens):
        return "placement, resource group or another statement of TiDB's own"
    if _is_temporary(tokens, ddl):
        return "rows of a global temporary table are not in the binlog"
    if statement.kind in (Kind.CREATE_INDEX, Kind.DROP_INDEX) and _is_on_expression_index(tokens, ddl, dialect):
        return _NO_EXPRESSION_INDEX
    if statement.kind is not Kind.ALTER_TABLE:
        return ""
    rest = tokens[statement.rest :]
    if rest and rest[0].is_word(*_SKIPPED_SPECS):
        return _SKIPPED_SPECS[rest[0].text.upper()]
    if rest and rest[0].is_word("SET") and any(token.is_word("TIFLASH") for token in rest):
        return "TiFlash replicas are TiDB's own"
    return ""


def _is_temporary(tokens: Sequence[Token], ddl: RoutedDdl) -> bool:
    touched = (*ddl.before.tables, *ddl.after.tables)
    defined = bool(touched) and all(table.raw.get("temp_table_type") for table in touched)
    return defined or (tokens[0].is_word("CREATE") and len(tokens) > 1 and tokens[1].is_word("GLOBAL"))


def _map_statement(tokens: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> list[Token]:
    kind = statement.kind
    if kind is Kind.OTHER or not (statement.tables or kind is Kind.ALTER_DATABASE):
        raise Unmappable(render(tokens[:3]))
    if kind in (Kind.CREATE_SEQUENCE, Kind.ALTER_SEQUENCE, Kind.DROP_SEQUENCE) and dialect == "mysql":
        raise Unmappable("SEQUENCE")
    if kind is Kind.CREATE_TABLE:
        return _map_create_table(tokens, statement, ddl, dialect)
    if kind is Kind.ALTER_TABLE:
        return _map_alter_table(tokens, statement, ddl, dialect)
    if kind in (Kind.CREATE_DATABASE, Kind.ALTER_DATABASE):
        return _map_database(tokens, statement, ddl, dialect)
    if kind in (Kind.DROP_TABLE, Kind.DROP_VIEW, Kind.DROP_SEQUENCE):
        return _map_drop(tokens, statement, ddl)
    if kind is Kind.CREATE_VIEW:
        return _map_view(tokens)
    if kind in (Kind.CREATE_INDEX, Kind.DROP_INDEX):
        return _remove_algorithm(map_element(tokens, None, None, dialect))
    return tokens


def _map_create_table(tokens: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> list[Token]:
    table = _find_table(ddl.after, statement, ddl)
    start = statement.rest
    end = find_closing(tokens, start)
    parts = split_list(tokens[start + 1 : end])
    plain = [drop_checks(part) if table is not None else map_written_checks(part, dialect) for part in parts]
    kept = [part for part in plain if part and (dialect != "mariadb" or not makes_expression_index(part))]
    # `KEY ...` defines an index, even if a column is named `Key`.
    elements = [map_element(part, None if part[0].is_word(*KEY_HEADS) else part, table, dialect) for part in kept]
    elements += make_foreign_key_indexes(parts, None, table)
    elements += make_check_elements(table, dialect) if table is not None else []
    partition = next((i for i in range(end + 1, len(tokens)) if tokens[i].is_word("PARTITION")), len(tokens))
    options = map_clauses(tokens[end + 1 : partition], dialect)
    if table is not None and lacks_charset(options):
        options = [*_make_charset_words(table, dialect), *options]
    return [*tokens[: start + 1], *join_list(elements), tokens[end], *options, *tokens[partition:]]


def _map_alter_table(tokens: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> list[Token]:
    table = _find_altered_table(statement, ddl)
    _require_same_key(ddl, table, dialect)
    before = _find_table(ddl.before, statement, ddl)
    listed, partitioning = split_partitioning(tokens[statement.rest :])
    parts = [part for spec in split_list(listed) for part in _split_added_columns(spec)]
    kept = [p for p in parts if not _is_on_expression_index(p, ddl, dialect)]
    kept = [p for p in kept if table is None or not is_check_spec(p, before)]
    kept = [put_stored_partition(spell_foreign_key(part, before), before) for part in kept]
    specs = [_map_spec(part, table, dialect) for part in kept]
    specs += [[*tokenize_with_spaces("ADD"), *index] for index in make_foreign_key_indexes(parts, before, table)]
    specs += make_check_specs(before, table, dialect) if table is not None else []
    return [*tokens[: statement.rest], *join_list([spec for spec in specs if spec]), *partitioning]


def _split_added_columns(spec: list[Token]) -> list[list[Token]]:
    """Split `ADD [COLUMN] (a …, b …)` into one spec per column."""
    start = 2 if len(spec) > 1 and spec[1].is_word("COLUMN") else 1
    if len(spec) <= start or not spec[0].is_word("ADD") or not spec[start].is_mark("("):
        return [spec]
    inside = split_list(spec[start + 1 : find_closing(spec, start)])
    # An element of the list may be an index, which takes no keyword COLUMN.
    words_of = [
        tokenize_with_spaces("ADD COLUMN") if part and part[0].kind is TokenKind.NAME else tokenize_with_spaces("ADD")
        for part in inside
    ]
    return [[*head, replace(part[0], space=True), *part[1:]] for head, part in zip(words_of, inside, strict=True)]


def _explain_empty_alter(specs: Sequence[Token], ddl: RoutedDdl, dialect: Dialect) -> str:
    if any(_is_on_expression_index(part, ddl, dialect) for part in split_list(specs)):
        return _NO_EXPRESSION_INDEX
    return "only options of TiDB remain, nothing for the target"


def _is_on_expression_index(tokens: Sequence[Token], ddl: RoutedDdl, dialect: Dialect) -> bool:
    return dialect == "mariadb" and (
        makes_expression_index(tokens) or names_expression_index(tokens, ddl.before.tables)
    )


def _require_same_key(ddl: RoutedDdl, table: TableDef | None, dialect: Dialect) -> None:
    """Raise Unmappable if a generated column would start or stop being computed by the target (`is_computed`).

    That happens when the column enters or leaves the primary key, or when it or a column that it reads gets a type
    for which the target does, or does not, compute alike.
    """
    for former in ddl.before.tables:
        for column in former.columns:
            now = table.find_column(column.name) if table is not None and table.id == former.id else None
            if now is None or table is None or not (now.is_generated and column.is_generated):
                continue
            if is_computed(column, former, dialect) != is_computed(now, table, dialect):
                raise Unmappable("a change after which the target would begin or cease to compute a generated column")


def _map_spec(part: list[Token], table: TableDef | None, dialect: Dialect) -> list[Token]:
    if part and part[0].is_word("ALGORITHM", "LOCK"):
        return []
    if len(part) > 1 and part[-1].is_word("VALIDATION") and part[-2].is_word("WITH", "WITHOUT"):
        return part[:-2]
    column = _find_column_definition(part)
    if column and table is not None:
        plain = drop_checks(column)
        return map_element([*part[: len(part) - len(column)], *plain], plain, table, dialect)
    if table is not None:
        return map_element(_set_default(part, table), column, table, dialect)
    spec = map_written_check_spec(part, dialect)
    mapped = map_written_checks(part, dialect) if spec is None else spec
    return map_element(mapped, _find_column_definition(mapped), None, dialect) if mapped else []


def _find_column_definition(part: list[Token]) -> list[Token] | None:
    """The column definition inside `ADD|MODIFY|CHANGE [COLUMN] …`, from the new name on."""
    if not part or not part[0].is_word("ADD", "MODIFY", "CHANGE"):
        return None
    at = 1
    while at < len(part) and part[at].is_word("COLUMN", "IF", "NOT", "EXISTS"):
        at += 1
    named = at > 1 or not part[0].is_word("ADD")
    at += part[0].is_word("CHANGE")
    kinds = (TokenKind.NAME, TokenKind.WORD) if named else (TokenKind.NAME,)
    return part[at:] if at < len(part) and part[at].kind in kinds else None


def _map_database(tokens: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> list[Token]:
    options = map_clauses(tokens[statement.rest :], dialect)
    named = statement.tables[0][1] if statement.tables else ddl.db
    database = next((db for db in ddl.after.databases if fold_name(db.name) == fold_name(named)), None)
    if statement.kind is Kind.CREATE_DATABASE and database is not None and lacks_charset(options):
        options = [*_make_charset_words(database, dialect), *options]
    # Without a name the statement changes the session's database, which may be another one at the target.
    name = [] if statement.tables else tokenize_with_spaces(quote_name(named))
    return [*tokens[: statement.rest], *name, *options]


def _map_drop(tokens: list[Token], statement: Classified, ddl: RoutedDdl) -> list[Token]:
    """Keep only the job's own tables in a list: `DROP TABLE a, b` gives a job per table, each with the whole text
    (R-28)."""
    own = {fold_pair((table.db, table.name)) for table in ddl.before.tables} or {fold_pair((ddl.db, ddl.table))}
    named = [(db or ddl.db, name) for db, name in statement.tables]
    kept = [quote_qualified_name(db, name) for db, name in named if fold_pair((db, name)) in own]
    return tokens if len(named) == 1 or not kept else [*tokens[: statement.rest], *tokenize(" " + ", ".join(kept))]


def _map_view(tokens: list[Token]) -> list[Token]:
    """Replace the definer, who need not exist at the target, by the user who applies the DDL."""
    at = next((i for i, token in enumerate(tokens) if token.is_word("DEFINER")), None)
    security = next((i for i, token in enumerate(tokens) if token.is_word("SQL", "VIEW")), len(tokens))
    if at is None or at > security:
        return tokens
    return [*tokens[: at + 1], *tokenize_with_spaces("= CURRENT_USER"), *tokens[security:]]


def _remove_algorithm(tokens: list[Token]) -> list[Token]:
    """Remove `ALGORITHM = x` and `LOCK = x`: a target that does not support them for this DDL would refuse it."""
    kept: list[Token] = []
    skip = 0
    for index, token in enumerate(tokens):
        if token.is_word("ALGORITHM", "LOCK") and index > 2:
            skip = 3 if index + 1 < len(tokens) and tokens[index + 1].is_mark("=") else 2
        if skip == 0:
            kept.append(token)
        skip = max(skip - 1, 0)
    return kept


def _find_table(side: Definitions, statement: Classified, ddl: RoutedDdl) -> TableDef | None:
    db, name = statement.tables[0]
    wanted = fold_pair((db or ddl.db, name))
    return next((table for table in side.tables if fold_pair((table.db, table.name)) == wanted), None)


def _make_charset_words(of: TableDef | DbInfo, dialect: Dialect) -> list[Token]:
    charset = find_target_charset(of.charset or "utf8mb4", dialect)
    collate = require_target_collation(of.collate or "utf8mb4_bin", dialect)
    return tokenize_with_spaces(f"DEFAULT CHARACTER SET {charset} COLLATE {collate}")


def make_inexpressible_error(ddl: RoutedDdl, dialect: Dialect, clause: str) -> TargetRefused:
    """The error for a DDL that `dialect` cannot express, with its position and the remedy."""
    return TargetRefused(
        f"a DDL cannot be expressed in {dialect}: {clause}",
        where={"commit_ts": ddl.commit_ts, "db": ddl.db, "table": ddl.table, "query": ddl.sql[:200]},
        hint="replace it by a statement that the target accepts (ddl-replacement); or make the same change at the "
        "target by hand and list its commit_ts in filter.ignore-txn-commit-ts; or exclude the table by"
        " filter.ignore-table",
    )
