"""DDL text of a MySQL or MariaDB log as single statements in standard form: one object each, whatever the session.

The text is as its session wrote it: the sql_mode says what quotes and backslashes mean, and comments with a version
(`/*!50100 ... */`) are part of it where the server runs them. What no target needs is told apart here, and what cannot
be followed is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from binlake.dialect.classify import Classified, Kind, NameRef, classify_tokens, names_object_first, read_name
from binlake.dialect.source import standard_tokens
from binlake.dialect.tokens import Quoting, Token, TokenKind, render, spaced_tokens, split_list, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.model import Flavor, Statement
from binlake.statements.literal import qualified, quote_name

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
"""Bits of sql_mode that say how text is read; both families have them at the same place."""


class What(Enum):
    """What a statement is to a follower of definitions."""

    DDL = "ddl"
    PASSED_OVER = "passed over"
    ROWS = "rows"


@dataclass(frozen=True)
class SingleStatement:
    """DDL of one object: (`db`, `table`), a database's `table` is "". `tokens`: standard form, names as written.

    `to`: the (db, table) that a rename gives, or whose form CREATE TABLE LIKE takes.
    """

    kind: Kind
    db: str
    table: str
    tokens: tuple[Token, ...]
    to: NameRef | None = None

    @property
    def text(self) -> str:
        """The statement."""
        return render(self.tokens)


def split_ddl(statement: Statement, flavor: Flavor) -> list[SingleStatement]:
    """The single statements of `statement` in order; none where it changes no definition that is followed.

    Raises SchemaError for a statement that changes rows or is not known.
    """
    tokens = read_tokens(statement, flavor)
    what = _what(tokens)
    if what is What.PASSED_OVER:
        return []
    if what is What.ROWS:
        raise SchemaError(
            "the log holds a change of rows as a statement, which no row of it can be made of",
            hint="set binlog_format = ROW at the source, for all sessions, and start from a new snapshot",
            where={"statement": statement.text[:200]},
        )
    return list(_singles(tokens, statement.db))


def read_tokens(statement: Statement, flavor: Flavor) -> list[Token]:
    """The tokens of a statement in standard form: comments that the server runs are in, all others gone."""
    mode = statement.session.sql_mode or 0
    quoting = Quoting(bool(mode & ANSI_QUOTES), not mode & NO_BACKSLASH_ESCAPES)
    tokens = standard_tokens(unwrapped(tokenize(statement.text, quoting), flavor, quoting))
    while tokens and tokens[-1].is_mark(";"):
        tokens.pop()
    tokens = _without_settings(tokens)
    if len(tokens) > 1 and tokens[1].is_word("TABLES") and tokens[0].is_word("DROP", "RENAME"):
        tokens[1] = Token(TokenKind.WORD, "TABLE", space=True)
    if tokens[-2:] and tokens[-1].is_word("TRANSACTION") and tokens[-2].is_word("START"):
        # MySQL's log of CREATE TABLE ... SELECT: rows follow in the same transaction.
        tokens = tokens[:-2]
    return tokens


def _without_settings(tokens: list[Token]) -> list[Token]:
    """`tokens` without MariaDB's `SET STATEMENT variable = value, ... FOR`: the log's session has these settings."""
    if len(tokens) < 2 or not (tokens[0].is_word("SET") and tokens[1].is_word("STATEMENT")):
        return tokens
    depth = 0
    for at, token in enumerate(tokens):
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.is_word("FOR"):
            return tokens[at + 1 :]
    return tokens


def unwrapped(tokens: Sequence[Token], flavor: Flavor, quoting: Quoting) -> list[Token]:
    """`tokens` with the insides of the comments that a server of `flavor` runs."""
    put = list[Token]()
    for token in tokens:
        inside = _run_by(token, flavor)
        put += [token] if inside is None else tokenize(" " + inside, quoting)
    return put


def _run_by(token: Token, flavor: Flavor) -> str | None:
    if token.kind is not TokenKind.COMMENT:
        return None
    mark = "/*!" if token.text.startswith("/*!") else "/*M!"
    if not token.text.startswith(mark) or (mark == "/*M!" and flavor is Flavor.MYSQL):
        return None
    inside = token.text[len(mark) : -2]
    digits = inside[: len(inside) - len(inside.lstrip("0123456789"))][:6]
    version = int(digits) if len(digits) >= 5 else 0
    # MariaDB leaves out what only a MySQL that it has no counterpart of would run.
    if mark == "/*!" and flavor is Flavor.MARIADB and 50700 <= version <= 99999:
        return None
    return inside[len(digits) if version else 0 :]


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
"""Objects of CREATE, ALTER, DROP and RENAME that are not followed; a temporary table is its session's own."""

_ROW_VERBS = frozenset({"CALL", "DELETE", "DO", "INSERT", "LOAD", "MERGE", "REPLACE", "UPDATE", "WITH"})


def _what(tokens: Sequence[Token]) -> What:
    """What a statement is, read from its first words. Raises SchemaError for one that is not known."""
    if not tokens or tokens[0].is_word(*_NO_DEFINITIONS):
        return What.PASSED_OVER
    if tokens[0].is_word(*_ROW_VERBS):
        return What.ROWS
    kind = classify_tokens(tokens).kind
    if kind is Kind.CREATE_TABLE and any(token.is_word("SELECT") for token in split_list(tokens)[-1]):
        return What.ROWS
    if tokens[0].is_word("CREATE", "ALTER", "DROP", "RENAME") and _of_another_object(tokens):
        return What.PASSED_OVER
    if kind is Kind.OTHER:
        raise SchemaError(
            "a statement of the log is not known",
            hint="if it changes no table, name its transaction in [[source.replace]] of feeder.toml: without"
            " statements it is passed over",
            where={"statement": render(tokens)[:200]},
        )
    return What.DDL


def _of_another_object(tokens: Sequence[Token]) -> bool:
    """True when the object of CREATE, ALTER, DROP or RENAME is none that is followed."""
    for at, token in enumerate(tokens[1:], 1):
        if token.is_word("TABLE", "DATABASE", "SCHEMA", "INDEX"):
            return not names_object_first(tokens)
        if token.is_word(*_NO_TABLES) and not (token.is_word("SPATIAL") and tokens[at + 1].is_word("INDEX")):
            return True
    return False


def _singles(tokens: list[Token], default_db: str) -> Iterator[SingleStatement]:
    statement = classify_tokens(tokens)
    kind = statement.kind
    if kind in (Kind.CREATE_DATABASE, Kind.ALTER_DATABASE, Kind.DROP_DATABASE):
        name = statement.tables[0][1] if statement.tables else default_db
        if not statement.tables:
            tokens = [*tokens[: statement.rest], *spaced_tokens(quote_name(name)), *tokens[statement.rest :]]
        yield SingleStatement(kind, name, "", tuple(tokens))
    elif kind is Kind.DROP_TABLE:
        for db, table in statement.tables:
            yield drop_table((db or default_db, table))
    elif kind is Kind.RENAME_TABLE:
        yield from _renames(tokens[statement.rest :], default_db)
    else:
        if kind in (Kind.CREATE_INDEX, Kind.DROP_INDEX):
            tokens = _as_alter(tokens, statement)
            statement = classify_tokens(tokens)
        db, table = statement.tables[0]
        main = SingleStatement(statement.kind, db or default_db, table, tuple(tokens))
        yield from _alters(main, statement.rest) if statement.kind is Kind.ALTER_TABLE else (main,)


def _as_alter(tokens: Sequence[Token], statement: Classified) -> list[Token]:
    """CREATE INDEX and DROP INDEX as the ALTER TABLE that they are."""
    on = next(at for at, token in enumerate(tokens) if token.is_word("ON"))
    how = ("ALGORITHM", "LOCK", "WAIT", "NOWAIT")
    end = next((at for at in range(statement.rest, len(tokens)) if tokens[at].is_word(*how)), len(tokens))
    index = next(at for at, token in enumerate(tokens) if token.is_word("INDEX"))
    name = tokens[index:on]
    head = [*spaced_tokens("ALTER TABLE"), *tokens[on + 1 : statement.rest]]
    if statement.kind is Kind.DROP_INDEX:
        return [*head, *spaced_tokens("DROP"), *name]
    kind = [token for token in tokens[1:index] if token.is_word("UNIQUE", "FULLTEXT", "SPATIAL")]
    added = [*spaced_tokens("ADD"), *kind, *name, *tokens[statement.rest : end]]
    if tokens[1].is_word("OR"):
        return [*head, *spaced_tokens("DROP INDEX IF EXISTS"), name[-1], *tokenize(","), *added]
    return [*head, *added]


def _renames(tokens: Sequence[Token], default_db: str) -> Iterator[SingleStatement]:
    for part in split_list(tokens):
        old, after = read_name(part, 0)
        to = next((at for at in range(after, len(part)) if part[at].is_word("TO")), len(part))
        new, _ = read_name(part, to + 1)
        if old is not None and new is not None:
            yield rename_table((old[0] or default_db, old[1]), (new[0] or default_db, new[1]))


def rename_table(old: NameRef, new: NameRef) -> SingleStatement:
    """RENAME TABLE of one table."""
    text = f"RENAME TABLE {qualified(*old)} TO {qualified(*new)}"
    return SingleStatement(Kind.RENAME_TABLE, *old, tuple(tokenize(text)), new)


def drop_table(name: NameRef) -> SingleStatement:
    """DROP TABLE of one table."""
    return SingleStatement(Kind.DROP_TABLE, *name, tuple(tokenize(f"DROP TABLE {qualified(*name)}")))


def single_alter(db: str, table: str, text: str) -> SingleStatement:
    """`text`, a single ALTER TABLE, of another table."""
    tokens = tokenize(text)
    at = classify_tokens(tokens).rest
    head = tokenize(f"ALTER TABLE {qualified(db, table)}")
    return SingleStatement(Kind.ALTER_TABLE, db, table, (*head, *tokens[at:]))


def _alters(main: SingleStatement, rest: int) -> Iterator[SingleStatement]:
    """An ALTER TABLE, and behind it the rename that is one of its clauses."""
    specs, new = list[Token](), None
    for spec in split_list(main.tokens[rest:]):
        if _gives_name(spec):
            new, _ = read_name(spec, 1 + (spec[1].is_word("TO", "AS") or spec[1].is_mark("=")))
        elif spec:
            specs += [Token(TokenKind.MARK, ","), *spec] if specs else spec
    if specs:
        head = spaced_tokens(f"ALTER TABLE {qualified(main.db, main.table)}")
        yield SingleStatement(main.kind, main.db, main.table, (*head, *specs))
    # A server takes a table's own name as its new one.
    if new is not None and (new[0] or main.db, new[1]) != (main.db, main.table):
        yield rename_table((main.db, main.table), (new[0] or main.db, new[1]))


def _gives_name(spec: Sequence[Token]) -> bool:
    return len(spec) > 1 and spec[0].is_word("RENAME") and not spec[1].is_word("COLUMN", "INDEX", "KEY")
