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
from binlake.mysqlbinlog.definitions.statements import unwrap_version_comments
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema.names import fold_name
from binlake.statements.literal import quote_name, quote_qualified_name

_DROPPED = ("INVISIBLE", "VISIBLE", "COMPRESSED")
_TABLE_OPTIONS = ("COMMENT", "AUTO_INCREMENT")


def create_tokens(create: str, flavor: Flavor) -> list[Token]:
    """The tokens of a SHOW CREATE TABLE text, with the contents of version comments."""
    return standardize_tokens(unwrap_version_comments(tokenize(create), flavor, DEFAULT_QUOTING))


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
        self._parts = split_list(tokens[start + 1 : end])
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
