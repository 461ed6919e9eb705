"""Choose the replicated tables: by the drainer's lists or DM's block-allow-list; always case-insensitive.

Drainer (tidb-binlog 5.6): first the do-lists (database OR table), then the ignore lists. DM (1.12): first databases,
then tables. A DDL on a database is checked with an empty table name.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable

from binlake.base.sections import BlockAllowList, FilterSection, TableName
from binlake.rules.patterns import Pattern, compile_drainer_pattern, compile_wildcard


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
