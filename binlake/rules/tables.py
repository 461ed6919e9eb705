"""Choose the replicated tables: by the drainer's lists, DM's block-allow-list, or TiDB's table filter; never by case.

Drainer (tidb-binlog 5.6): first the do-lists (database OR table), then the ignore lists. DM (1.12): first databases,
then tables. A DDL on a database is checked with an empty table name.

Table filter (reference 3.5): of its patterns of `schema.table`, the last that matches decides. Rule: the grammar is
that of TiDB's own parser, and what it refuses is refused: a pattern that is read in another way would match nothing,
without a word. A name has letters, digits, `_`, `$` and characters outside ASCII; `*`, `?` and `[...]` are wildcards, a
backslash escapes any other character, `/.../` is a regular expression in Go's syntax, quotes or backticks enclose names
with other characters, a leading `!` excludes tables, and `#` begins a comment. A pattern that names a file (`@file`) is
refused.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from binlake.common.sections import BlockAllowList, FilterSection, TableName
from binlake.errors import ConfigError
from binlake.rules.patterns import Pattern, compile_drainer_pattern, compile_go_regex, compile_wildcard, translate_class


class TableChoice(abc.ABC):
    """Decides for (database, table) names whether they are replicated, and caches each decision."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bool] = {}

    def keeps(self, db: str, table: str) -> bool:
        """True if changes of `db`.`table` are replicated."""
        is_kept = self._known.get((db, table))
        if is_kept is None:
            is_kept = self._known[db, table] = self._decide(db, table)
        return is_kept

    @abc.abstractmethod
    def _decide(self, db: str, table: str) -> bool: ...


class TableFilter(TableChoice):
    """Chooses tables by the drainer's lists."""

    def __init__(self, config: FilterSection) -> None:
        super().__init__()
        self._do_dbs = [compile_drainer_pattern(name) for name in config.replicate_do_db]
        self._do_tables = _compile_pairs(config.replicate_do_table, compile_drainer_pattern)
        self._ignore_dbs = [compile_drainer_pattern(name) for name in config.ignore_schemas]
        self._ignore_tables = _compile_pairs(config.ignore_table, compile_drainer_pattern)

    def _decide(self, db: str, table: str) -> bool:
        if (self._do_dbs or self._do_tables) and not (
            _matches_any(self._do_dbs, db) or _match(self._do_tables, db, table)
        ):
            return False
        return not (_matches_any(self._ignore_dbs, db) or _match(self._ignore_tables, db, table))


SYSTEM = frozenset(
    {"information_schema", "inspection_schema", "performance_schema", "metrics_schema", "mysql", "sys", "dm_heartbeat"}
)
"""Databases that the block-allow-list always excludes."""


class BlockAllow(TableChoice):
    """Chooses tables by DM's lists."""

    def __init__(self, config: BlockAllowList) -> None:
        super().__init__()
        self._do_dbs = [compile_wildcard(name) for name in config.do_dbs]
        self._do_tables = _compile_pairs(config.do_tables, compile_wildcard)
        self._ignore_dbs = [compile_wildcard(name) for name in config.ignore_dbs]
        self._ignore_tables = _compile_pairs(config.ignore_tables, compile_wildcard)

    def _decide(self, db: str, table: str) -> bool:
        return self._keeps_db(db) and (not table or self._keeps_table(db, table))

    def _keeps_db(self, db: str) -> bool:
        if db.lower() in SYSTEM:
            return False
        return _matches_any(self._do_dbs, db) if self._do_dbs else not _matches_any(self._ignore_dbs, db)

    def _keeps_table(self, db: str, table: str) -> bool:
        if _match(self._do_tables, db, table):
            return True
        return not _match(self._ignore_tables, db, table) and not self._do_tables


_Pairs = list[tuple[Pattern, Pattern]]


def _matches_any(patterns: Iterable[Pattern], name: str) -> bool:
    return any(pattern.matches(name) for pattern in patterns)


def _match(pairs: _Pairs, db: str, table: str) -> bool:
    return any(db_pattern.matches(db) and table_pattern.matches(table) for db_pattern, table_pattern in pairs)


def _compile_pairs(names: Iterable[TableName], pattern: Callable[[str], Pattern]) -> _Pairs:
    return [(pattern(name.db_name), pattern(name.tbl_name)) for name in names]


_HINT = r"write schema.table, for example test.*, `my db`.t1, test.order\_items, /^db_[0-9]+$/.orders or !test.tmp_*"
_REGEX = re.compile(r"/((?:\\.|[^/\\])+)/", re.DOTALL)
_QUOTED = re.compile(r'''`((?:[^`]|``)+)`|"((?:[^"]|"")+)"''')
_PART = re.compile(
    r"\\(?P<escaped>[^0-9A-Za-z])|\[(?P<range>!?(?:\\[^0-9A-Za-z]|[^\\\]])+)\]|(?P<many>\*)|(?P<one>\?)"
    "|(?P<plain>[0-9A-Za-z_$\x80-\U0010ffff])",
    re.DOTALL,
)


@dataclass(frozen=True)
class _Rule:
    accepts: bool
    db: re.Pattern[str]
    table: re.Pattern[str]

    def matches(self, db: str, table: str) -> bool:
        return self.db.search(db) is not None and self.table.search(table) is not None


class TableMatcher:
    """Matches tables by a list of patterns."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Raises ConfigError naming the pattern that cannot be read."""
        texts = [text.strip() for text in patterns]
        self._rules = [_read_rule(text) for text in texts if text and not text.startswith("#")]

    def matches(self, db: str, table: str) -> bool:
        """True if the last pattern that matches `db`.`table` includes it; False if none matches."""
        return next((rule.accepts for rule in reversed(self._rules) if rule.matches(db, table)), False)


def _read_rule(text: str) -> _Rule:
    if text.startswith("@"):
        raise ConfigError(
            "a file of patterns is not read",
            where={"pattern": text},
            hint="write the patterns of the file into the list",
        )
    body = text.removeprefix("!")
    db, dot = _read_name(body, 0, text)
    if body[dot : dot + 1] != ".":
        raise _build_error("it needs a schema, a dot and a table", text)
    table, end = _read_name(body, dot + 1, text)
    if end != len(body):
        raise _build_error(f"unexpected {body[end]!r}", text)
    return _Rule(not text.startswith("!"), db, table)


def _read_name(body: str, at: int, text: str) -> tuple[re.Pattern[str], int]:
    """The pattern of the name at `at`, and the place after it."""
    if regex := _REGEX.match(body, at):
        return compile_go_regex(regex[1], text), regex.end()
    if quoted := _QUOTED.match(body, at):
        name = quoted[1].replace("``", "`") if quoted[1] else quoted[2].replace('""', '"')
        return _compile(re.escape(name), text), quoted.end()
    parts, begin = [], at
    while part := _PART.match(body, at):
        parts.append(_build_wildcard_regex(part, text))
        at = part.end()
    if at == begin:
        raise _build_error(f"unexpected {body[at]!r}" if body[at:] else "it ends early", text)
    return _compile("".join(parts), text), at


def _build_wildcard_regex(part: re.Match[str], text: str) -> str:
    if part["many"] or part["one"]:
        return ".*" if part["many"] else "."
    if part["range"] is None:
        return re.escape(part["escaped"] or part["plain"])
    is_outside = part["range"].startswith("!")
    inside = translate_class(part["range"].removeprefix("!"), text)
    return f"[^{inside}]" if is_outside else f"[{inside}]" if not inside.startswith("^") else rf"[\{inside}]"


def _compile(expression: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"\A{expression}\Z", re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise _build_error(f"a range is none: {error}", text) from None


def _build_error(message: str, text: str) -> ConfigError:
    return ConfigError(f"a pattern of tables cannot be read: {message}", where={"pattern": text}, hint=_HINT)
