"""The drainer's table lists: do-lists first (database OR table), then the ignore lists (tidb-binlog 5.6).

A name with a leading `~` is a regular expression searched anywhere; without it the text is an anchored one, so that `.`
is a wildcard, as the originals have it. Always case-insensitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from binlake.config.model import Filter, TableName
from binlake.errors import ConfigError

Matcher = Callable[[str], bool]


class TableFilter:
    """Judges (database, table) names; a database-level DDL is judged with an empty table name."""

    def __init__(self, config: Filter) -> None:
        self._do_dbs = [_matcher(name) for name in config.replicate_do_db]
        self._do_tables = _pairs(config.replicate_do_table)
        self._ignore_dbs = [_matcher(name) for name in config.ignore_schemas]
        self._ignore_tables = _pairs(config.ignore_table)
        self._known: dict[tuple[str, str], bool] = {}

    def keeps(self, db: str, table: str) -> bool:
        """True when changes of `db`.`table` are replicated."""
        found = self._known.get((db, table))
        if found is None:
            found = self._known[db, table] = self._judge(db, table)
        return found

    def _judge(self, db: str, table: str) -> bool:
        if (self._do_dbs or self._do_tables) and not (_any(self._do_dbs, db) or _match(self._do_tables, db, table)):
            return False
        return not (_any(self._ignore_dbs, db) or _match(self._ignore_tables, db, table))


def _any(matchers: Iterable[Matcher], name: str) -> bool:
    return any(matches(name) for matches in matchers)


def _match(pairs: Iterable[tuple[Matcher, Matcher]], db: str, table: str) -> bool:
    return any(db_matches(db) and table_matches(table) for db_matches, table_matches in pairs)


def _pairs(names: Iterable[TableName]) -> list[tuple[Matcher, Matcher]]:
    return [(_matcher(name.db_name), _matcher(name.tbl_name)) for name in names]


def _matcher(text: str) -> Matcher:
    pattern = text[1:] if text.startswith("~") else f"^(?:{text})$"
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ConfigError(
            f"not a regular expression: {error}", where={"filter": text}, hint="see Python's re"
        ) from None
    return lambda name: compiled.search(name) is not None
