"""DDL text of a MySQL or MariaDB log as single statements in standard form: one object each, whatever the session.

The text is as its session wrote it: sql_mode decides what quotes and backslashes mean, and comments with a version
(`/*!50100 ... */`) are part of it if the server runs them. Statements that no target needs are recognised here, and
those that cannot be followed are refused by name.

MariaDB's CONVERT PARTITION ... TO TABLE and CONVERT TABLE ... TO PARTITION become the statements that they consist of:
the rows of a partition become a table, or a table becomes a partition, without a logged row. Either is an EXCHANGE
PARTITION with an empty table or partition, which targets of every family have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from binlake.dialect.classify import Classified, DdlKind, NameRef, classify_tokens, names_object_first, read_name
from binlake.dialect.source import standardize_tokens
from binlake.dialect.tokens import (
    Quoting,
    Token,
    TokenKind,
    render,
    split_list,
    split_partitioning,
    tokenize,
    tokenize_with_spaces,
)
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.clausetexts import (
    drop_alter_storage,
    drop_create_storage,
    drop_sequence_defaults,
    refuse_ignored_rows,
    unqualify_columns,
)
from binlake.mysqlbinlog.definitions.online import find_tool_trigger
from binlake.mysqlbinlog.model import Flavor, LoggedStatement
from binlake.statements.literal import quote_name, quote_qualified_name

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
"""Bits of sql_mode that affect parsing; they are the same in both families."""
_NO_DEFINITIONS = frozenset(
    {
        "ANALYZE", "BACKUP", "BEGIN", "BINLOG", "CACHE", "CHANGE", "CHECK", "CHECKSUM", "CLONE", "COMMIT", "FLUSH",
        "GRANT", "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PURGE", "RELEASE", "REPAIR", "RESET", "REVOKE", "ROLLBACK",
        "SAVEPOINT", "SET", "SHUTDOWN", "START", "STOP", "UNINSTALL", "UNLOCK", "USE", "XA",
    }
)  # fmt: skip
"""Verbs of statements that change no table's definition."""
_NO_TABLES = frozenset(
    {
        "EVENT", "FUNCTION", "INSTANCE", "LIBRARY", "LOGFILE", "PACKAGE", "PROCEDURE", "REFERENCE", "RESOURCE", "ROLE",
        "SEQUENCE", "SERVER", "SPATIAL", "TABLESPACE", "TEMPORARY", "TRIGGER", "UNDO", "USER", "VIEW",
    }
)  # fmt: skip
"""Objects of CREATE, ALTER, DROP and RENAME that are not followed; a temporary table belongs to its session."""
_ROW_VERBS = frozenset({"CALL", "DELETE", "DO", "INSERT", "LOAD", "MERGE", "REPLACE", "UPDATE", "WITH"})


def split_conversion(specs: Sequence[Token], table: NameRef) -> list[tuple[NameRef, str]]:
    """(table, statement) of each statement that the clauses of an ALTER of `table` consist of; empty for others."""
    if len(specs) < 5 or not specs[0].is_word("CONVERT"):
        return []
    if specs[1].is_word("PARTITION") and specs[4].is_word("TABLE"):
        return _split_into_table(quote_name(specs[2].value), table, _complete(read_name(specs, 5)[0], table))
    if specs[1].is_word("TABLE"):
        other, end = read_name(specs, 2)
        return _split_into_partition(_drop_validation(specs[end + 1 :]), table, _complete(other, table))
    return []


def _split_into_table(partition: str, table: NameRef, new: NameRef) -> list[tuple[NameRef, str]]:
    old_name, new_name = quote_qualified_name(*table), quote_qualified_name(*new)
    return [
        (new, f"CREATE TABLE {new_name} LIKE {old_name}"),
        (new, f"ALTER TABLE {new_name} REMOVE PARTITIONING"),
        (table, f"ALTER TABLE {old_name} EXCHANGE PARTITION {partition} WITH TABLE {new_name}"),
        (table, f"ALTER TABLE {old_name} DROP PARTITION {partition}"),
    ]


def _split_into_partition(definition: Sequence[Token], table: NameRef, other: NameRef) -> list[tuple[NameRef, str]]:
    """`definition`: `PARTITION name VALUES ...`."""
    name, other_name, partition = quote_qualified_name(*table), quote_qualified_name(*other), definition[1].value
    return [
        (table, f"ALTER TABLE {name} ADD PARTITION ({render(definition).strip()})"),
        (table, f"ALTER TABLE {name} EXCHANGE PARTITION {quote_name(partition)} WITH TABLE {other_name}"),
        (other, f"DROP TABLE {other_name}"),
    ]


def _complete(name: NameRef | None, beside: NameRef) -> NameRef:
    assert name is not None
    return name[0] or beside[0], name[1]


def _drop_validation(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without `WITH VALIDATION` or `WITHOUT VALIDATION`."""
    return tokens[:-2] if tokens[-1].is_word("VALIDATION") else tokens


class StatementEffect(Enum):
    """What a statement changes."""

    DDL = "ddl"
    SKIPPED = "skipped"
    ROWS = "rows"


@dataclass(frozen=True)
class SingleStatement:
    """DDL on one object: (`db`, `table`); for a database `table` is "". `tokens`: standard form, names as written.

    `to`: the new (db, table) of a rename.
    """

    kind: DdlKind
    db: str
    table: str
    tokens: tuple[Token, ...]
    to: NameRef | None = None

    @property
    def text(self) -> str:
        """The statement."""
        return render(self.tokens)


def split_ddl(statement: LoggedStatement, flavor: Flavor) -> list[SingleStatement]:
    """The single statements of `statement` in order; none if it changes no tracked definition.

    A trigger of an online-DDL tool is a statement of kind OTHER on its table: it changes nothing, but shows the tool.

    Raises SchemaError for a statement that changes rows or is unknown.
    """
    tokens = read_tokens(statement, flavor)
    triggered = find_tool_trigger(tokens)
    if triggered is not None:
        return [SingleStatement(DdlKind.OTHER, triggered[0] or statement.db, triggered[1], tuple(tokens))]
    effect = _find_effect(tokens)
    if effect is StatementEffect.SKIPPED:
        return []
    if effect is StatementEffect.ROWS:
        raise SchemaError(
            "the log has a change of rows as a statement, which cannot be converted to rows",
            hint="set binlog_format = ROW at the source, for all sessions, and start from a new snapshot",
            where={"statement": statement.text[:200]},
        )
    return list(_split_by_object(tokens, statement.db))


def read_tokens(statement: LoggedStatement, flavor: Flavor) -> list[Token]:
    """The tokens of a statement in standard form: with comments that the server runs, without all others."""
    mode = statement.session.sql_mode or 0
    quoting = Quoting(bool(mode & ANSI_QUOTES), not mode & NO_BACKSLASH_ESCAPES)
    tokens = standardize_tokens(unwrap_version_comments(tokenize(statement.text, quoting), flavor, quoting))
    while tokens and tokens[-1].is_mark(";"):
        tokens.pop()
    tokens = _strip_settings(tokens)
    if len(tokens) > 1 and tokens[1].is_word("TABLES") and tokens[0].is_word("DROP", "RENAME"):
        tokens[1] = Token(TokenKind.WORD, "TABLE", space=True)
    if tokens[-2:] and tokens[-1].is_word("TRANSACTION") and tokens[-2].is_word("START"):
        # MySQL's log of CREATE TABLE ... SELECT: rows follow in the same transaction.
        tokens = tokens[:-2]
    return tokens


def _strip_settings(tokens: list[Token]) -> list[Token]:
    """`tokens` without MariaDB's `SET STATEMENT variable = value, ... FOR`: the log's session has these settings."""
    if len(tokens) < 2 or not (tokens[0].is_word("SET") and tokens[1].is_word("STATEMENT")):
        return tokens
    depth = 0
    for at, token in enumerate(tokens):
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.is_word("FOR"):
            return tokens[at + 1 :]
    return tokens


def unwrap_version_comments(tokens: Sequence[Token], flavor: Flavor, quoting: Quoting) -> list[Token]:
    """`tokens` with the contents of comments that a server of `flavor` runs."""
    put = list[Token]()
    for token in tokens:
        inside = _parse_executable_comment(token, flavor)
        put += [token] if inside is None else tokenize(" " + inside, quoting)
    return put


def _parse_executable_comment(token: Token, flavor: Flavor) -> str | None:
    if token.kind is not TokenKind.COMMENT:
        return None
    mark = "/*!" if token.text.startswith("/*!") else "/*M!"
    if not token.text.startswith(mark) or (mark == "/*M!" and flavor is Flavor.MYSQL):
        return None
    inside = token.text[len(mark) : -2]
    digits = inside[: len(inside) - len(inside.lstrip("0123456789"))][:6]
    version = int(digits) if len(digits) >= 5 else 0
    # MariaDB skips comments for MySQL versions that it has no counterpart of.
    if mark == "/*!" and flavor is Flavor.MARIADB and 50700 <= version <= 99999:
        return None
    return inside[len(digits) if version else 0 :]


def _find_effect(tokens: Sequence[Token]) -> StatementEffect:
    """The effect of a statement, by its first words. Raises SchemaError for an unknown statement."""
    if not tokens or tokens[0].is_word(*_NO_DEFINITIONS):
        return StatementEffect.SKIPPED
    if tokens[0].is_word(*_ROW_VERBS):
        return StatementEffect.ROWS
    kind = classify_tokens(tokens).kind
    if kind is DdlKind.CREATE_TABLE and any(token.is_word("SELECT") for token in split_list(tokens)[-1]):
        return StatementEffect.ROWS
    if tokens[0].is_word("CREATE", "ALTER", "DROP", "RENAME") and _is_untracked_object(tokens):
        return StatementEffect.SKIPPED
    if kind is DdlKind.OTHER:
        raise SchemaError(
            "the log has an unknown statement",
            hint="if it changes no table, name its transaction in [[source.replace]] of feeder.toml: without"
            " statements it is skipped",
            where={"statement": render(tokens)[:200]},
        )
    return StatementEffect.DDL


def _is_untracked_object(tokens: Sequence[Token]) -> bool:
    """True if the object of CREATE, ALTER, DROP or RENAME is not followed."""
    for at, token in enumerate(tokens[1:], 1):
        if token.is_word("TABLE", "DATABASE", "SCHEMA", "INDEX"):
            return not names_object_first(tokens)
        if token.is_word(*_NO_TABLES) and not (token.is_word("SPATIAL") and tokens[at + 1].is_word("INDEX")):
            return True
    return False


def _split_by_object(tokens: list[Token], default_db: str) -> Iterator[SingleStatement]:
    statement = classify_tokens(tokens)
    kind = statement.kind
    if kind in (DdlKind.CREATE_DATABASE, DdlKind.ALTER_DATABASE, DdlKind.DROP_DATABASE):
        name = statement.tables[0][1] if statement.tables else default_db
        if not statement.tables:
            tokens = [*tokens[: statement.rest], *tokenize_with_spaces(quote_name(name)), *tokens[statement.rest :]]
        yield SingleStatement(kind, name, "", tuple(tokens))
    elif kind is DdlKind.DROP_TABLE:
        for db, table in statement.tables:
            yield drop_table((db or default_db, table))
    elif kind is DdlKind.RENAME_TABLE:
        yield from _split_rename(tokens[statement.rest :], default_db)
    else:
        if kind in (DdlKind.CREATE_INDEX, DdlKind.DROP_INDEX):
            tokens = _index_as_alter(tokens, statement)
            statement = classify_tokens(tokens)
        db, table = statement.tables[0]
        tokens = _strip_server_clauses(tokens, statement, default_db)
        main = SingleStatement(statement.kind, db or default_db, table, tuple(tokens))
        if any(token.is_word("IGNORE") for token in tokens[: statement.rest]):
            refuse_ignored_rows(tokens[statement.rest :])
        yield from _split_alter(main, statement.rest) if statement.kind is DdlKind.ALTER_TABLE else (main,)


def _strip_server_clauses(tokens: list[Token], statement: Classified, default_db: str) -> list[Token]:
    """ALTER TABLE and CREATE TABLE without what only the source's server has around them.

    Sequences remain in an ALTER: what they do to older rows is decided where it is followed.
    """
    if statement.kind not in (DdlKind.ALTER_TABLE, DdlKind.CREATE_TABLE):
        return tokens
    db, table = statement.tables[0]
    plain = unqualify_columns(tokens, statement.rest, (db or default_db, table))
    if statement.kind is DdlKind.CREATE_TABLE:
        return drop_sequence_defaults(drop_create_storage(plain))
    return [*plain[: statement.rest], *drop_alter_storage(plain[statement.rest :])]


def _index_as_alter(tokens: Sequence[Token], statement: Classified) -> list[Token]:
    """CREATE INDEX or DROP INDEX as the equivalent ALTER TABLE."""
    on = next(at for at, token in enumerate(tokens) if token.is_word("ON"))
    how = ("ALGORITHM", "LOCK", "WAIT", "NOWAIT")
    end = next((at for at in range(statement.rest, len(tokens)) if tokens[at].is_word(*how)), len(tokens))
    index = next(at for at, token in enumerate(tokens) if token.is_word("INDEX"))
    name = tokens[index:on]
    head = [*tokenize_with_spaces("ALTER TABLE"), *tokens[on + 1 : statement.rest]]
    if statement.kind is DdlKind.DROP_INDEX:
        return [*head, *tokenize_with_spaces("DROP"), *name]
    kind = [token for token in tokens[1:index] if token.is_word("UNIQUE", "FULLTEXT", "SPATIAL")]
    added = [*tokenize_with_spaces("ADD"), *kind, *name, *tokens[statement.rest : end]]
    if tokens[1].is_word("OR"):
        return [*head, *tokenize_with_spaces("DROP INDEX IF EXISTS"), name[-1], *tokenize(","), *added]
    return [*head, *added]


def _split_rename(tokens: Sequence[Token], default_db: str) -> Iterator[SingleStatement]:
    for part in split_list(tokens):
        old, after = read_name(part, 0)
        to = next((at for at in range(after, len(part)) if part[at].is_word("TO")), len(part))
        new, _ = read_name(part, to + 1)
        if old is not None and new is not None:
            yield rename_table((old[0] or default_db, old[1]), (new[0] or default_db, new[1]))


def rename_table(old: NameRef, new: NameRef) -> SingleStatement:
    """RENAME TABLE of one table."""
    text = f"RENAME TABLE {quote_qualified_name(*old)} TO {quote_qualified_name(*new)}"
    return SingleStatement(DdlKind.RENAME_TABLE, *old, tuple(tokenize(text)), new)


def drop_table(name: NameRef) -> SingleStatement:
    """DROP TABLE of one table."""
    return SingleStatement(DdlKind.DROP_TABLE, *name, tuple(tokenize(f"DROP TABLE {quote_qualified_name(*name)}")))


def build_single_alter(db: str, table: str, text: str) -> SingleStatement:
    """`text`, a single ALTER TABLE, applied to another table."""
    tokens = tokenize(text)
    at = classify_tokens(tokens).rest
    head = tokenize(f"ALTER TABLE {quote_qualified_name(db, table)}")
    return SingleStatement(DdlKind.ALTER_TABLE, db, table, (*head, *tokens[at:]))


def _split_alter(main: SingleStatement, rest: int) -> Iterator[SingleStatement]:
    """An ALTER TABLE, followed by the rename that is one of its clauses."""
    specs, new = list[Token](), None
    listed, partitioning = split_partitioning(main.tokens[rest:])
    for spec in split_list(listed):
        if _is_rename_clause(spec):
            new, _ = read_name(spec, 1 + (spec[1].is_word("TO", "AS") or spec[1].is_mark("=")))
        elif spec:
            specs += [Token(TokenKind.MARK, ","), *spec] if specs else spec
    specs += partitioning
    converted = split_conversion(specs, (main.db, main.table))
    for (db, table), text in converted:
        tokens = tuple(tokenize(text))
        yield SingleStatement(classify_tokens(tokens).kind, db, table, tokens)
    if specs and not converted:
        head = tokenize_with_spaces(f"ALTER TABLE {quote_qualified_name(main.db, main.table)}")
        yield SingleStatement(main.kind, main.db, main.table, (*head, *specs))
    # A server accepts a table's own name as its new one.
    if new is not None and (new[0] or main.db, new[1]) != (main.db, main.table):
        yield rename_table((main.db, main.table), (new[0] or main.db, new[1]))


def _is_rename_clause(spec: Sequence[Token]) -> bool:
    return len(spec) > 1 and spec[0].is_word("RENAME") and not spec[1].is_word("COLUMN", "INDEX", "KEY")
