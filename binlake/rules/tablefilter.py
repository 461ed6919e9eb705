"""TiDB's table filter: patterns of `schema.table`; the last pattern that matches decides (reference 3.5).

`*`, `?` and `[...]` are wildcards, `/.../` is a regular expression, quotes or backticks enclose names with other
characters, and a leading `!` excludes tables. Names are compared without regard to case, as in TiDB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from binlake.errors import ConfigError

_HINT = "write schema.table, for example test.*, `my db`.t1, /^db_[0-9]+$/.orders or !test.tmp_*"
_NAME = re.compile(
    r"""(?P<regex>/(?:[^/\\]|\\.)*/)|`(?P<tick>(?:[^`]|``)*)`|"(?P<quote>(?:[^"]|"")*)"|(?P<plain>[^.`"/]+)"""
)


@dataclass(frozen=True)
class _Rule:
    accepts: bool
    db: re.Pattern[str]
    table: re.Pattern[str]

    def matches(self, db: str, table: str) -> bool:
        return self.db.fullmatch(db) is not None and self.table.fullmatch(table) is not None


class TableMatcher:
    """Matches tables by a list of patterns."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Raises ConfigError naming the pattern that cannot be read."""
        self._rules = [_read_rule(text.strip()) for text in patterns]

    def matches(self, db: str, table: str) -> bool:
        """True if the last pattern that matches `db`.`table` includes it; False if none matches."""
        return next((rule.accepts for rule in reversed(self._rules) if rule.matches(db, table)), False)


def _read_rule(text: str) -> _Rule:
    body = text.removeprefix("!")
    db = _NAME.match(body)
    dot = db.end() if db else 0
    table = _NAME.match(body, dot + 1) if body[dot : dot + 1] == "." else None
    if db is None or table is None or table.end() != len(body):
        raise ConfigError("a pattern of tables cannot be read", where={"pattern": text}, hint=_HINT)
    return _Rule(not text.startswith("!"), _compile(db, text), _compile(table, text))


def _compile(name: re.Match[str], text: str) -> re.Pattern[str]:
    if name["regex"] is not None:
        expression = f".*(?:{name['regex'][1:-1]}).*"
    elif name["plain"] is not None:
        expression = "".join(
            _make_wildcard_regex(part) for part in re.findall(r"\[[^\]]+\]|.", name["plain"], re.DOTALL)
        )
    else:
        expression = re.escape((name["tick"] or "").replace("``", "`") or (name["quote"] or "").replace('""', '"'))
    try:
        return re.compile(expression, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise ConfigError(f"not a regular expression: {error}", where={"pattern": text}, hint=_HINT) from None


def _make_wildcard_regex(part: str) -> str:
    if len(part) > 1:
        inside = part[1:-1].replace("\\", r"\\").replace("^", r"\^")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return {"*": ".*", "?": "."}.get(part) or re.escape(part)
