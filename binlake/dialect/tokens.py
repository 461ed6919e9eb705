"""Tokenize DDL text as TiDB restores it: all names are back-quoted, so a bare word is always a keyword (tidb-binlog
1.11)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from binlake.errors import SchemaError


class TokenKind(Enum):
    """The kind of a token. A FEATURE is a comment that only TiDB executes; MySQL-family servers ignore it."""

    WORD = "word"
    NAME = "name"
    STRING = "string"
    NUMBER = "number"
    MARK = "mark"
    FEATURE = "feature"
    COMMENT = "comment"


@dataclass(frozen=True)
class Quoting:
    """Quoting in an sql_mode: `ansi` (ANSI_QUOTES): `"` quotes a name; `backslashes`: whether backslashes escape."""

    ansi: bool = False
    backslashes: bool = True


DEFAULT_QUOTING = Quoting()


class PlainStrings(Protocol):
    """Follows a text token by token and tells which strings do not escape backslashes."""

    def __call__(self, before: Token | None) -> bool:
        """True if a string after the token `before` does not escape backslashes."""

    def note_token(self, token: Token, before: Token | None) -> None:
        """Note that `token`, which follows `before`, has been read."""


@dataclass(frozen=True)
class Token:
    """A token: `text` as written; `space`: white space precedes it. `plain`: a string without escapes."""

    kind: TokenKind
    text: str
    space: bool = False
    plain: bool = False

    def is_word(self, *words: str) -> bool:
        """True for a bare word among `words` (upper case)."""
        return self.kind is TokenKind.WORD and self.text.upper() in words

    def is_mark(self, mark: str) -> bool:
        """True for the punctuation `mark`."""
        return self.kind is TokenKind.MARK and self.text == mark

    @property
    def value(self) -> str:
        """The name or string without its quotes; for any other token its text."""
        if self.kind not in (TokenKind.NAME, TokenKind.STRING):
            return self.text
        quote, inside = self.text[0], self.text[1:-1]
        if self.kind is TokenKind.NAME or self.plain or "\\" not in inside:
            return inside.replace(quote * 2, quote)
        return re.sub(
            rf"{quote}{quote}|\\(.)", lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else quote, inside, flags=re.DOTALL
        )


_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


_PATTERN = re.compile(
    r"""(?P<space>\s+)
    |(?P<feature>/\*T!.*?\*/)
    |(?P<comment>/\*.*?\*/|\#[^\n]*|--(?=\s|$)[^\n]*)
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<string>['"])
    |(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w$]))
    |(?P<word>[\w$@\u0080-\uffff]+)
    |(?P<mark>:=|<=>|<=|>=|<>|!=|\|\||&&|->>|->|.)""",
    re.VERBOSE | re.DOTALL,
)


_STRINGS = {
    quote: (re.compile(rf"{quote}(?:[^{quote}\\]|{quote}{quote}|\\.)*{quote}", re.DOTALL),
            re.compile(rf"{quote}(?:[^{quote}]|{quote}{quote})*{quote}", re.DOTALL))
    for quote in "'\""
}  # fmt: skip
"""For each quote: the pattern of a string whose backslashes escape, and of one whose backslashes do not."""


def tokenize(
    text: str, quoting: Quoting = DEFAULT_QUOTING, *, plain_strings: PlainStrings | None = None
) -> list[Token]:
    """The tokens of `text` without white space. Raises SchemaError for a quote that is not closed."""
    tokens: list[Token] = []
    space, at = False, 0
    while match := _PATTERN.match(text, at):
        kind, part = match.lastgroup or "mark", match.group()
        at = match.end()
        if kind == "space":
            space = True
            continue
        before = tokens[-1] if tokens else None
        if kind == "string":
            token = _read_quoted(text, match.start(), quoting, plain_strings is not None and plain_strings(before))
            token, at = replace(token, space=space), match.start() + len(token.text)
        elif kind == "mark" and part == "`":
            raise _build_unterminated_error(text, match.start())
        else:
            token = Token(TokenKind(kind), part, space)
        tokens.append(token)
        if plain_strings is not None:
            plain_strings.note_token(token, before)
        space = False
    return tokens


def _read_quoted(text: str, start: int, quoting: Quoting, plain: bool) -> Token:
    """The string, or the name of ANSI_QUOTES, that begins at `start`."""
    names = quoting.ansi and text[start] == '"'
    plain = plain or names or not quoting.backslashes
    match = _STRINGS[text[start]][plain].match(text, start)
    if match is None:
        raise _build_unterminated_error(text, start)
    return Token(TokenKind.NAME if names else TokenKind.STRING, match.group(), False, plain and not names)


def _build_unterminated_error(text: str, start: int) -> SchemaError:
    return SchemaError("a quote in DDL text is not closed", where={"at": start, "text": text[:80]})


def render(tokens: Sequence[Token]) -> str:
    """The text of `tokens`, with their original spacing."""
    parts = [(" " if token.space and index else "") + token.text for index, token in enumerate(tokens)]
    return "".join(parts).strip()


def tokenize_with_spaces(text: str) -> list[Token]:
    """Tokens of a text to insert: a space before the first, the others as written.

    A server reads `X ''` and `trim (x)` as something else than `X''` and `trim(x)`.
    """
    return [replace(token, space=token.space or not index) for index, token in enumerate(tokenize(text))]


def find_closing(tokens: Sequence[Token], start: int) -> int:
    """Index of the `)` that closes the `(` at `start`; the last index if it is missing."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += tokens[index].is_mark("(") - tokens[index].is_mark(")")
        if depth == 0:
            return index
    return len(tokens) - 1


def skip_exists(tokens: Sequence[Token], at: int) -> int:
    """The first index from `at` on that is not a keyword of IF [NOT] EXISTS."""
    while at < len(tokens) and tokens[at].is_word("IF", "NOT", "EXISTS"):
        at += 1
    return at


def split_list(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split `tokens` at top-level commas."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.is_mark(","):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def split_partitioning(specs: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    """Split the clauses of ALTER TABLE before `PARTITION BY …` or `REMOVE PARTITIONING`, which follow without a
    comma."""
    depth = 0
    for at, token in enumerate(specs[:-1]):
        depth += token.is_mark("(") - token.is_mark(")")
        second = specs[at + 1]
        partitions = token.is_word("PARTITION") and second.is_word("BY")
        if depth == 0 and (partitions or (token.is_word("REMOVE") and second.is_word("PARTITIONING"))):
            return list(specs[:at]), list(specs[at:])
    return list(specs), []


def join_list(parts: Sequence[Sequence[Token]]) -> list[Token]:
    """The inverse of `split_list`."""
    joined: list[Token] = []
    for part in parts:
        joined += [Token(TokenKind.MARK, ","), *part] if joined else part
    return joined
