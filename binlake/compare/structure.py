"""Read columns, types, collations and keys of a table from the text of SHOW CREATE TABLE.

Only the parts that equality compares are read (docs/understand/equality.md), not defaults, comments, partitions, checks
and foreign keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from binlake.errors import WireError

EXPRESSION = "(expression)"
# Only in the elements of ENUM and SET, TiDB writes a backslash unescaped, so there it escapes no quote.
_TOKEN = re.compile(
    r"/\*.*?\*/|`(?:[^`]|``)*`|\b(?:enum|set)\('(?:[^']|'')*'(?:,'(?:[^']|'')*')*\)|'(?:[^'\\]|''|\\.)*'"
    r"|\"(?:[^\"\\]|\"\"|\\.)*\"|\w+|[^\s\w]",
    re.S | re.IGNORECASE,
)
_ELEMENT = re.compile(r"'(?:[^']|'')*'")
_WITH_COLLATION = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")


@dataclass(frozen=True)
class ColumnStructure:
    """A column: `type` as in `normalize_type`; `collation` is empty for types without one.

    `lost_default`: its default contains U+FFFD, which TiDB stores for bytes that are not UTF-8.
    """

    name: str
    type: str
    nullable: bool
    collation: str
    generated: bool
    lost_default: bool = False


@dataclass(frozen=True)
class KeyStructure:
    """A key: `columns` with prefix lengths (0 = whole); an expression is `EXPRESSION`. `name` is lower case."""

    name: str
    unique: bool
    columns: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        parts = ", ".join(f"{name}({length})" if length else name for name, length in self.columns)
        return f"{'unique ' if self.unique else ''}key {self.name} ({parts})"


@dataclass(frozen=True)
class TableStructure:
    """A table's columns in order and its keys."""

    columns: tuple[ColumnStructure, ...]
    keys: frozenset[KeyStructure]


def normalize_type(text: str, *, backslash_escapes: bool = False) -> str:
    """A type in canonical spelling: lower case, single blanks, integers and YEAR without display width, ENUM and SET as
    JSON.

    `backslash_escapes`: quoted elements escape backslashes, as in MySQL and MariaDB; TiDB escapes only line ends.
    """
    if parse_base_type(text) in ("enum", "set"):
        elements = [_unquote_element(part, backslash_escapes) for part in _ELEMENT.findall(text)]
        return f"{parse_base_type(text)}{json.dumps(elements, ensure_ascii=False)}"
    spelled = re.sub(r"\s+", " ", text.lower()).strip()
    return re.sub(r"^((?:tiny|small|medium|big)?int|year)\s*\(\d+\)", r"\1", spelled)


def _unquote_element(quoted: str, backslash_escapes: bool) -> str:
    known = {"n": "\n", "r": "\r", "0": "\0"} | (
        {"\\": "\\", "t": "\t", "b": "\b", "Z": "\x1a"} if backslash_escapes else {}
    )
    return re.sub(r"''|\\(.)", lambda m: "'" if m[1] is None else known.get(m[1], m[0]), quoted[1:-1], flags=re.S)


def normalize_collation(name: str) -> str:
    """The name in lower case, with `utf8` under its newer name `utf8mb3`."""
    return re.sub(r"^utf8_", "utf8mb3_", name.lower())


def parse_base_type(text: str) -> str:
    """The first word of a type: `varchar(20)` is `varchar`."""
    return re.split(r"[\s(]", text.lower(), maxsplit=1)[0]


def parse_create(create: str, types: Sequence[str]) -> TableStructure:
    """Parse the text of SHOW CREATE TABLE; `types`: those of SHOW COLUMNS, in the same order. Raises WireError."""
    body, options = _split(create)
    default = _find_option(options, "COLLATE")
    definitions = list(_split_definitions(body))
    column_definitions = [definition for definition in definitions if definition[0].startswith("`")]
    if len(column_definitions) != len(types):
        raise WireError("SHOW CREATE TABLE and SHOW COLUMNS differ", where={"create": create[:80]})
    columns = tuple(
        _parse_column(tokens, kind, default) for tokens, kind in zip(column_definitions, types, strict=True)
    )
    return TableStructure(columns, frozenset(key for tokens in definitions if (key := _parse_key(tokens))))


def _tokenize(text: str) -> list[str]:
    return [token for token in _TOKEN.findall(text) if not token.startswith("/*")]


def _split(create: str) -> tuple[list[str], list[str]]:
    tokens = _tokenize(create)
    depth = 0
    opened = tokens.index("(") if "(" in tokens else -1
    for at in range(max(opened, 0), len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if depth == 0 and opened >= 0:
            return tokens[opened + 1 : at], tokens[at + 1 :]
    raise WireError("no table definition", where={"create": create[:80]})


def _split_definitions(body: Sequence[str]) -> Iterator[list[str]]:
    current: list[str] = []
    depth = 0
    for token in body:
        depth += (token == "(") - (token == ")")
        if token == "," and depth == 0:
            yield current
            current = []
        else:
            current.append(token)
    if current:
        yield current


def _find_option(tokens: Sequence[str], name: str) -> str:
    for at, token in enumerate(tokens):
        if token.upper() == name and at + 1 < len(tokens):
            value = tokens[at + 2] if tokens[at + 1] == "=" else tokens[at + 1]
            return value.strip("'`").lower()
    return ""


def _parse_column(tokens: Sequence[str], kind: str, default: str) -> ColumnStructure:
    top = list(_select_top_level(tokens))
    words = [token.upper() for token in top]
    collation = (
        normalize_collation(_find_option(top, "COLLATE") or default) if parse_base_type(kind) in _WITH_COLLATION else ""
    )
    not_null = ("NOT", "NULL") in pairwise(words)
    lost = any(word == "DEFAULT" and "\ufffd" in value for word, value in pairwise(words))
    return ColumnStructure(
        unquote(tokens[0]), normalize_type(kind), not not_null, collation, "GENERATED" in words, lost
    )


def _select_top_level(tokens: Sequence[str]) -> Iterator[str]:
    depth = 0
    for token in tokens:
        depth -= token == ")"
        if depth == 0 and token != ")":
            yield token
        depth += token == "("


def _parse_key(tokens: Sequence[str]) -> KeyStructure | None:
    words = [token.upper() for token in tokens[:3]]
    if words[0] not in ("PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL"):
        return None
    primary, unique = words[0] == "PRIMARY", words[0] in ("PRIMARY", "UNIQUE")
    opened = tokens.index("(")
    name = "primary" if primary else unquote(tokens[opened - 1]).lower()
    return KeyStructure(name, unique, tuple(_parse_key_columns(_select_inside(tokens, opened))))


def _select_inside(tokens: Sequence[str], opened: int) -> list[str]:
    depth = 0
    for at in range(opened, len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if depth == 0:
            return list(tokens[opened + 1 : at])
    raise WireError("a key without closing parenthesis", where={"key": " ".join(tokens)[:80]})


def _parse_key_columns(tokens: Sequence[str]) -> Iterator[tuple[str, int]]:
    for part in _split_definitions(tokens):
        if part[0] == "(":
            yield EXPRESSION, 0
        else:
            yield unquote(part[0]), int(part[2]) if len(part) > 2 and part[1] == "(" else 0


def unquote(token: str) -> str:
    """The name without its back quotes, or the token itself if it has none."""
    return token[1:-1].replace("``", "`") if token.startswith("`") else token
