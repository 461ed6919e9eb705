"""Columns and tables as DDL text that means the same in every session: read from SHOW CREATE TABLE, not as written.

Each text column states its character set and collation if they differ from the table's; a table always does. What only
the source's server understands (engine, row format, versions in comments, invisible columns) is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from binlake.dialect.source import standardize_tokens
from binlake.dialect.tokens import (
    DEFAULT_QUOTING,
    Token,
    TokenKind,
    find_closing,
    join_list,
    split_list,
    tokenize,
    tokenize_with_spaces,
)
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.clausetexts import drop_create_storage, drop_sequence_defaults
from binlake.mysqlbinlog.definitions.statements import unwrap_version_comments
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import quote_name, quote_qualified_name

_DROPPED = ("INVISIBLE", "VISIBLE", "COMPRESSED")
_TABLE_OPTIONS = ("COMMENT", "AUTO_INCREMENT")


def create_tokens(create: str, flavor: Flavor) -> list[Token]:
    """The tokens of a SHOW CREATE TABLE text that another server can run, with the contents of version comments."""
    tokens = standardize_tokens(unwrap_version_comments(tokenize(create), flavor, DEFAULT_QUOTING))
    return drop_sequence_defaults(drop_create_storage(tokens))


class CreateText:
    """A table's CREATE in parts. `charsets`: (character set, collation) of each text column, `own`: those of the table.

    Raises SchemaError for a table whose rows keep their history (system versioning): its log has other rows.
    """

    def __init__(
        self, create: str, flavor: Flavor, charsets: Mapping[str, tuple[str, str]], own: tuple[str, str]
    ) -> None:
        self._charsets, self._own = charsets, own
        tokens = create_tokens(create, flavor)
        start = next((at for at, token in enumerate(tokens) if token.is_mark("(")), len(tokens))
        end = find_closing(tokens, start)
        parts = split_list(tokens[start + 1 : end])
        # A period is only a check of the source, as CHECK is.
        self._periods = {fold_name(part[2].value): (part[4], part[6]) for part in parts if part[0].is_word("PERIOD")}
        self._parts = [self.replace_periods(part) for part in parts if not part[0].is_word("PERIOD")]
        self._options = tokens[end + 1 :]
        if any(a.is_word("SYSTEM") and b.is_word("VERSIONING") for a, b in pairwise(tokens)):
            raise SchemaError(
                "a table with system versioning cannot be followed: its log contains the rows of its history",
                hint="exclude the table (ignore-tables of the source in feeder.toml)",
                where={"table": create[:80]},
            )
        self._columns = {fold_name(part[0].value): part for part in self._parts if part[0].kind is TokenKind.NAME}

    @property
    def charset_words(self) -> str:
        """The table's character set and collation as clauses."""
        charset, collate = self._own
        return f"CHARACTER SET {charset} COLLATE {collate}"

    def find_column(self, name: str) -> list[Token] | None:
        """The definition of a column, without its name; None if there is no such column."""
        part = self._columns.get(fold_name(name))
        return None if part is None else self._build_definition(part)

    def find_inline_references(self, column: str) -> tuple[list[list[Token]], list[list[Token]]]:
        """(`KEY name (column)`, `CONSTRAINT name FOREIGN KEY (column) …`): the elements on this column alone."""
        folded = fold_name(column)
        indexes = [p for p in self._parts if p[0].is_word("KEY") and fold_name(p[3].value) == folded and len(p) == 5]
        keys = [p for p in self._parts if p[0].is_word("CONSTRAINT") and p[2].is_word("FOREIGN")]
        return indexes, [key for key in keys if fold_name(key[5].value) == folded and key[6].is_mark(")")]

    def replace_periods(self, tokens: Sequence[Token]) -> list[Token]:
        """The tokens of a key with the two columns of a period in place of `period WITHOUT OVERLAPS`."""
        put, at = list[Token](), 0
        while at < len(tokens):
            begins = len(tokens) > at + 2 and tokens[at + 1].is_word("WITHOUT") and tokens[at + 2].is_word("OVERLAPS")
            columns = self._periods.get(fold_name(tokens[at].value)) if begins else None
            put += [tokens[at]] if columns is None else [columns[1], Token(TokenKind.MARK, ","), columns[0]]
            at += 1 if columns is None else 3
        return put

    def build_statement(self, db: str, table: str) -> list[Token]:
        """The CREATE TABLE statement under another name."""
        parts = [
            [part[0], *self._build_definition(part)] if part[0].kind is TokenKind.NAME else part for part in self._parts
        ]
        options = [*tokenize_with_spaces(f"DEFAULT {self.charset_words}"), *self._select_table_options()]
        head = tokenize(f"CREATE TABLE {quote_qualified_name(db, table)} (")
        return [*head, *join_list(parts), *tokenize(")"), *options]

    def _build_definition(self, part: Sequence[Token]) -> list[Token]:
        plain = strip_charset([token for token in part[1:] if not token.is_word(*_DROPPED)])
        charset, collate = self._charsets.get(part[0].value, self._own)
        if collate == self._own[1]:
            return plain
        end = find_closing(plain, 1) + 1 if len(plain) > 1 and plain[1].is_mark("(") else 1
        return [*plain[:end], *tokenize_with_spaces(f"CHARACTER SET {charset} COLLATE {collate}"), *plain[end:]]

    def _select_table_options(self) -> list[Token]:
        partition = next((at for at, t in enumerate(self._options) if t.is_word("PARTITION")), len(self._options))
        options = list[Token]()
        for at, token in enumerate(self._options[:partition]):
            if token.is_word(*_TABLE_OPTIONS) and self._options[at + 1].is_mark("="):
                options += self._options[at : at + 3]
        return [*options, *self._options[partition:]]


def strip_charset(definition: Sequence[Token]) -> list[Token]:
    """A column's definition without CHARACTER SET and COLLATE; those inside parentheses belong to an expression."""
    tokens, at, depth = list[Token](), 0, 0
    while at < len(definition):
        token = definition[at]
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.is_word("COLLATE", "CHARSET"):
            at += 2
        elif depth == 0 and token.is_word("CHARACTER") and definition[at + 1].is_word("SET"):
            at += 3
        else:
            tokens.append(token)
            at += 1
    return tokens


def create_database_text(name: str, charset: str, collate: str) -> str:
    """CREATE DATABASE with its character set."""
    return f"CREATE DATABASE {quote_name(name)} DEFAULT CHARACTER SET {charset} COLLATE {collate}"
