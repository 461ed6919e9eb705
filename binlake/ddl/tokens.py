"""Tokens of DDL text as TiDB restores it: back-quoted names, so that a bare word is always SQL (tidb-binlog 1.11)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from binlake.errors import SchemaError


class TokenKind(Enum):
    """What a token is. A FEATURE is a comment that only TiDB executes; MySQL-family servers pass over it."""

    WORD = "word"
    NAME = "name"
    STRING = "string"
    NUMBER = "number"
    MARK = "mark"
    FEATURE = "feature"
    COMMENT = "comment"


@dataclass(frozen=True)
class Token:
    """A token: `text` as written; `space` = white space stood before it."""

    kind: TokenKind
    text: str
    space: bool = False

    def is_word(self, *words: str) -> bool:
        """True for a bare word among `words` (upper case)."""
        return self.kind is TokenKind.WORD and self.text.upper() in words

    def is_mark(self, mark: str) -> bool:
        """True for the punctuation `mark`."""
        return self.kind is TokenKind.MARK and self.text == mark

    @property
    def value(self) -> str:
        """The name or string without its quotes; the text of anything else."""
        if self.kind is TokenKind.NAME:
            return self.text[1:-1].replace("``", "`")
        if self.kind is TokenKind.STRING:
            quote = self.text[0]
            return self.text[1:-1].replace(quote * 2, quote)
        return self.text


_PATTERN = re.compile(
    r"""(?P<space>\s+)
    |(?P<feature>/\*T!.*?\*/)
    |(?P<comment>/\*.*?\*/|\#[^\n]*|--(?=\s|$)[^\n]*)
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<string>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
    |(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w$]))
    |(?P<word>[\w$@\u0080-\uffff]+)
    |(?P<mark>:=|<=>|<=|>=|<>|!=|\|\||&&|->>|->|.)""",
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str) -> list[Token]:
    """The tokens of `text` without white space. Raises SchemaError for a quote that does not end."""
    found: list[Token] = []
    space = False
    for match in _PATTERN.finditer(text):
        kind, part = match.lastgroup or "mark", match.group()
        if kind == "space":
            space = True
            continue
        if kind == "mark" and part in "`'\"":
            raise SchemaError("a quote in DDL text does not end", where={"at": match.start(), "text": text[:80]})
        found.append(Token(TokenKind(kind), part, space))
        space = False
    return found


def render(tokens: Sequence[Token]) -> str:
    """Text of `tokens`, spaced as they were."""
    parts = [(" " if token.space and index else "") + token.text for index, token in enumerate(tokens)]
    return "".join(parts).strip()


def words(text: str) -> list[Token]:
    """Tokens of our own text to put in, each with a space before it."""
    return [Token(token.kind, token.text, True) for token in tokenize(text)]


def closing(tokens: Sequence[Token], start: int) -> int:
    """Index of the `)` that closes the `(` at `start`; the last index when it is missing."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += tokens[index].is_mark("(") - tokens[index].is_mark(")")
        if depth == 0:
            return index
    return len(tokens) - 1


def split_list(tokens: Sequence[Token]) -> list[list[Token]]:
    """`tokens` cut at top-level commas."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.is_mark(","):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def join_list(parts: Sequence[Sequence[Token]]) -> list[Token]:
    """The inverse of `split_list`."""
    joined: list[Token] = []
    for part in parts:
        joined += [Token(TokenKind.MARK, ","), *part] if joined else part
    return joined
