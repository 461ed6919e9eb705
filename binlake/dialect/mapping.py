"""Write TiDB's DDL text in the dialect of the target. A DDL that the target cannot express raises a clear error.

Each change is a row of docs/understand/target-mapping.md; those of ALTER TABLE are in `altertable`. Sources:
DESIGN 4 (charset and collation of each CREATE), tidb-binlog 1.11, 1.14, 5.10; hazards R-28.

`DdlText` writes the CREATE TABLE of a definition, for a target's table that is gone together with its statements. Its
columns, keys, collations and comments are those of the definition. What no row depends on is left out: partitions,
foreign keys, checks, and indexes that are no keys and on an expression or on a whole TEXT or BLOB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from binlake.common.sql import Dialect
from binlake.dialect.altertable import (
    build_alter_statements,
    explain_empty_alter,
    explain_left_out_index,
    map_alter_table,
    put_stored_defaults_into_alter,
)
from binlake.dialect.classify import KEY_HEADS, Classified, DdlKind, classify_tokens
from binlake.dialect.clauses import (
    build_foreign_key_indexes,
    drop_float_bounds,
    lacks_charset,
    map_clauses,
    map_element,
    map_tidb_column,
    require_target_collation,
)
from binlake.dialect.collations import find_target_charset
from binlake.dialect.defaults import format_default
from binlake.dialect.definedclauses import (
    build_check_elements,
    drop_checks,
    map_written_checks,
    put_stored_bounds,
    unwrap_not_enforced,
)
from binlake.dialect.expressions import makes_expression_index
from binlake.dialect.names import DATABASES, find_session_db, split_statements
from binlake.dialect.routed import RoutedDdl, Unmappable, find_altered_table, find_table
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    find_closing,
    join_list,
    render,
    split_list,
    tokenize,
    tokenize_with_spaces,
)
from binlake.dialect.wholetexts import makes_whole_text_key
from binlake.errors import SchemaError, TargetRefused
from binlake.rows.schema import ColumnInfo, DbInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rows.schema.job import PUBLIC
from binlake.rows.schema.state import DdlSide
from binlake.statements.literal import quote, quote_name, quote_qualified_name

_SKIPPED_SPECS = {
    "ATTRIBUTES": "table attributes are TiDB's own",
    "CACHE": "cached tables are TiDB's own",
    "NOCACHE": "cached tables are TiDB's own",
    "COMPACT": "compaction of TiFlash is TiDB's own",
    "STATS_OPTIONS": "statistics options are TiDB's own",
}
_NOTHING = DdlSide((), ())


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
        raise build_inexpressible_error(ddl, dialect, error.message) from error
    mapped = [_map_one(tokens, ddl, dialect) for tokens in parts]
    applied = [one for one in mapped if one.sql]
    if len(mapped) == 1 or not applied:
        return mapped[0]
    return MappedDdl(tuple(dict.fromkeys(text for one in applied for text in one.sql)))


def _map_one(tokens: list[Token], ddl: RoutedDdl, dialect: Dialect) -> MappedDdl:
    statement = classify_tokens(tokens)
    tokens = put_stored_bounds(tokens, find_altered_table(statement, ddl))
    reason = _find_skip_reason(tokens, statement, ddl, dialect)
    if reason:
        return MappedDdl((), reason)
    is_alter = statement.kind is DdlKind.ALTER_TABLE
    try:
        mapped = (
            _put_stored_defaults(tokens, statement, ddl)
            if dialect == "tidb"
            else _map_statement(tokens, statement, ddl, dialect)
        )
        if is_alter and not mapped[statement.rest :]:
            return MappedDdl((), explain_empty_alter(tokens[statement.rest :], ddl, dialect))
        text = build_alter_statements(mapped, statement, ddl, dialect) if is_alter else (render(mapped),)
    except Unmappable as error:
        raise build_inexpressible_error(ddl, dialect, error.clause) from None
    use = (
        ()
        if statement.kind in DATABASES or not ddl.db
        else (f"USE {quote_name(find_session_db(statement, ddl.before.tables, ddl.db))}",)
    )
    return MappedDdl((*use, *text))


def _put_stored_defaults(tokens: list[Token], statement: Classified, ddl: RoutedDdl) -> list[Token]:
    """Put stored defaults into the tokens for a TiDB target, whose session has another time zone than the source's."""
    table = find_altered_table(statement, ddl)
    if table is None or statement.kind not in (DdlKind.CREATE_TABLE, DdlKind.ALTER_TABLE):
        return tokens
    if statement.kind is DdlKind.ALTER_TABLE:
        return [*tokens[: statement.rest], *put_stored_defaults_into_alter(tokens[statement.rest :], table)]
    end = find_closing(tokens, statement.rest)
    parts = [map_tidb_column(part, table) for part in split_list(tokens[statement.rest + 1 : end])]
    return [*tokens[: statement.rest + 1], *join_list(parts), *tokens[end:]]


def _tokenize_plain(query: str, dialect: Dialect) -> list[Token]:
    """Tokens without comments; a TiDB target keeps TiDB's own clauses."""
    dropped = {TokenKind.COMMENT} if dialect == "tidb" else {TokenKind.COMMENT, TokenKind.FEATURE}
    return [token for token in unwrap_not_enforced(tokenize(query)) if token.kind not in dropped]


def _find_skip_reason(tokens: Sequence[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> str:
    if not tokens or all(token.kind is TokenKind.FEATURE for token in tokens):
        return "placement, resource group or another statement of TiDB's own"
    if _is_temporary(tokens, ddl):
        return "rows of a global temporary table are not in the binlog"
    if statement.kind in (DdlKind.CREATE_INDEX, DdlKind.DROP_INDEX) and (
        why := explain_left_out_index(tokens, ddl, dialect)
    ):
        return why
    if statement.kind is not DdlKind.ALTER_TABLE:
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
    if kind is DdlKind.OTHER or not (statement.tables or kind is DdlKind.ALTER_DATABASE):
        raise Unmappable(render(tokens[:3]))
    if kind in (DdlKind.CREATE_SEQUENCE, DdlKind.ALTER_SEQUENCE, DdlKind.DROP_SEQUENCE) and dialect == "mysql":
        raise Unmappable("SEQUENCE")
    if kind is DdlKind.CREATE_TABLE:
        return _map_create_table(tokens, statement, ddl, dialect)
    if kind is DdlKind.ALTER_TABLE:
        return map_alter_table(tokens, statement, ddl, dialect)
    if kind in (DdlKind.CREATE_DATABASE, DdlKind.ALTER_DATABASE):
        return _map_database(tokens, statement, ddl, dialect)
    if kind in (DdlKind.DROP_TABLE, DdlKind.DROP_VIEW, DdlKind.DROP_SEQUENCE):
        return _map_drop(tokens, statement, ddl)
    if kind is DdlKind.CREATE_VIEW:
        return _map_view(tokens)
    if kind in (DdlKind.CREATE_INDEX, DdlKind.DROP_INDEX):
        return _remove_algorithm(map_element(tokens, None, find_altered_table(statement, ddl), dialect))
    return tokens


def _map_create_table(tokens: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> list[Token]:
    table = find_table(ddl.after, statement, ddl)
    start = statement.rest
    end = find_closing(tokens, start)
    parts = split_list(tokens[start + 1 : end])
    plain = [drop_checks(part) if table is not None else map_written_checks(part, dialect) for part in parts]
    if table is not None and not table.source:
        plain = [drop_float_bounds(part) for part in plain]
    kept = [part for part in plain if part and (dialect != "mariadb" or not makes_expression_index(part))]
    if dialect == "mysql" and table is not None:
        kept = [part for part in kept if not makes_whole_text_key(part, [table])]
    # `KEY ...` defines an index, even if a column is named `Key`.
    elements = [map_element(part, None if part[0].is_word(*KEY_HEADS) else part, table, dialect) for part in kept]
    elements += build_foreign_key_indexes(parts, None, table)
    elements += build_check_elements(table, dialect) if table is not None else []
    partition = next((i for i in range(end + 1, len(tokens)) if tokens[i].is_word("PARTITION")), len(tokens))
    options = map_clauses(tokens[end + 1 : partition], dialect)
    if table is not None and lacks_charset(options):
        options = [*_build_charset_words(table, dialect), *options]
    return [*tokens[: start + 1], *join_list(elements), tokens[end], *options, *tokens[partition:]]


def _map_database(tokens: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> list[Token]:
    options = map_clauses(tokens[statement.rest :], dialect)
    named = statement.tables[0][1] if statement.tables else ddl.db
    database = next((db for db in ddl.after.databases if fold_name(db.name) == fold_name(named)), None)
    if statement.kind is DdlKind.CREATE_DATABASE and database is not None and lacks_charset(options):
        options = [*_build_charset_words(database, dialect), *options]
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


def _build_charset_words(of: TableDef | DbInfo, dialect: Dialect) -> list[Token]:
    charset = find_target_charset(of.charset or "utf8mb4", dialect)
    collate = require_target_collation(of.collate or "utf8mb4_bin", dialect)
    return tokenize_with_spaces(f"DEFAULT CHARACTER SET {charset} COLLATE {collate}")


def build_inexpressible_error(ddl: RoutedDdl, dialect: Dialect, clause: str) -> TargetRefused:
    """The error for a DDL that `dialect` cannot express, with its position and the remedy."""
    return TargetRefused(
        f"a DDL cannot be expressed in {dialect}: {clause}",
        where={"commit_ts": ddl.commit_ts, "db": ddl.db, "table": ddl.table, "query": ddl.sql[:200]},
        hint="replace it by a statement that the target accepts (ddl-replacement); or make the same change at the "
        "target by hand and list its commit_ts in filter.ignore-txn-commit-ts; or exclude the table by"
        " filter.ignore-table",
    )


@dataclass(frozen=True)
class DdlText:
    """A `RoutedDdl`: `sql` has the target's names; `before` and `after` are empty unless the definitions are known."""

    commit_ts: int
    db: str
    table: str
    sql: str
    before: DdlSide = _NOTHING
    after: DdlSide = _NOTHING


def build_create_statements(table: TableDef, dialect: Dialect, commit_ts: int) -> tuple[str, ...]:
    """The statements that create `table` (the target's names). Raises TargetRefused for what `dialect` cannot have."""
    parts = [*map(_format_column, table.columns), *_format_indexes(table)]
    comment = f" COMMENT = {quote(table.comment)}" if table.comment else ""
    text = f"CREATE TABLE {quote_name(table.name)} ({', '.join(parts)}){comment}"
    return map_ddl(DdlText(commit_ts, table.db, table.name, text, after=DdlSide((), (table,))), dialect).sql


def _format_column(column: ColumnInfo) -> str:
    is_text = (column.tp in t.STRINGS and not column.is_binary) or column.tp in (t.ENUM, t.SET)
    words = [quote_name(column.name), column.type_text]
    if is_text:
        words.append(f"CHARACTER SET {column.charset} COLLATE {column.collate}")
    if column.is_generated:
        kind = "STORED" if column.generated_stored else "VIRTUAL"
        words.append(f"GENERATED ALWAYS AS ({column.generated_expr}) {kind}")
    words.append("NOT NULL" if column.not_null else "NULL")
    words += [] if column.is_generated else _list_defaults(column)
    return " ".join([*words, *([f"COMMENT {quote(column.comment)}"] if column.comment else [])])


def _list_defaults(column: ColumnInfo) -> Iterator[str]:
    clock = f"CURRENT_TIMESTAMP({column.fsp})" if column.fsp else "CURRENT_TIMESTAMP"
    literal = format_default(column)
    if literal is not None:
        yield f"DEFAULT {literal}"
    elif column.default is not None:
        is_clock = column.defaults_to_time and column.tp in t.MOMENTS
        yield f"DEFAULT {clock}" if is_clock else f"DEFAULT ({column.default})"
    if column.flag & t.FLAG_ON_UPDATE_NOW:
        yield f"ON UPDATE {clock}"
    if column.flag & t.FLAG_AUTO_INCREMENT:
        yield "AUTO_INCREMENT"


def _format_indexes(table: TableDef) -> Iterator[str]:
    keys = table.list_unique_keys()
    names = {index.name for index in keys}
    others = (index for index in table.indexes if index.state == PUBLIC and index.name not in names)
    for index in (*keys, *others):
        if index.primary:
            yield f"PRIMARY KEY ({_format_parts(index)})"
        elif index.unique or _is_plain(table, index):
            yield f"{'UNIQUE ' if index.unique else ''}INDEX {quote_name(index.name)} ({_format_parts(index)})"


def _format_parts(index: IndexInfo) -> str:
    return ", ".join(quote_name(part.name) + (f"({part.length})" if part.length > 0 else "") for part in index.columns)


def _is_plain(table: TableDef, index: IndexInfo) -> bool:
    """True for an index that every server can have: on visible columns, and on the beginning of a TEXT or BLOB."""
    columns = [table.find_column(part.name) for part in index.columns]
    return all(
        column is not None and column.tp != t.JSON and (column.tp not in t.BLOBS or part.length > 0)
        for column, part in zip(columns, index.columns, strict=True)
    )
