"""Which tables of the source each rule of a replication matches, so that a rule that matches none can be named.

Rule: each pattern is compiled by the grammar of its own list, and is tried on the names that the list sees: the table
lists on all tables, rules that follow them on the tables that are replicated, feeds and `target.tables` on these
tables' names at the target. A pattern that excludes is tried like one that includes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from binlake.common.sections import TableName
from binlake.config.model import Replication
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules
from binlake.rules.patterns import Pattern, compile_drainer_pattern, compile_wildcard
from binlake.rules.tables import SYSTEM, TableMatcher

Name = tuple[str, str]
_Compile = Callable[[str], Pattern]


@dataclass(frozen=True)
class RuleMatch:
    """`place`: the rule's key; `pattern`: as written there; `seen`: what it is for; `feed`: whose it is."""

    place: str
    pattern: str
    seen: str
    tables: tuple[Name, ...]
    feed: str = ""


SOURCE = "table of the source"
REPLICATED = "replicated table of the source"
AT_TARGET = "replicated table under its name at the target"


def select_own_tables(replication: Replication, tables: Iterable[Name]) -> list[Name]:
    """`tables` without those of the servers' own databases, unless they are replicated; sorted."""
    rules = Rules.of(replication)
    return sorted(name for name in tables if name[0].lower() not in SYSTEM or rules.keeps(*name))


def match_rules(replication: Replication, tables: Iterable[Name]) -> list[RuleMatch]:
    """Each rule with those of `tables` (db, table of the source) that it matches, in the order of the reference.

    Raises ConfigError for a pattern that cannot be read, and for two routes of equal rank that match one table.
    """
    every, rules = sorted(tables), Rules.of(replication)
    kept = [name for name in every if rules.keeps(*name)]
    named = sorted({rules.routes.map_table(*name) for name in kept})
    return [
        *_match_lists(replication, every),
        *_match_pairs(replication, kept),
        *_match_target_names(replication, named),
    ]


def _match_lists(replication: Replication, tables: Sequence[Name]) -> Iterator[RuleMatch]:
    lists, block = replication.filter, replication.block_allow_list
    # Tables of the servers' own databases are not shown, so a list that leaves them out, as the default, is not wrong.
    ignored = [name for name in lists.ignore_schemas if name.lower() not in SYSTEM]
    for key, names in (("replicate-do-db", list(lists.replicate_do_db)), ("ignore-schemas", ignored)):
        yield from _match_databases(f"filter.{key}", names, compile_drainer_pattern, tables)
    for key, pairs in (("replicate-do-table", lists.replicate_do_table), ("ignore-table", lists.ignore_table)):
        yield from _match_tables(f"filter.{key}", pairs, compile_drainer_pattern, SOURCE, tables)
    if block is None:
        return
    ignored = [name for name in block.ignore_dbs if name.lower() not in SYSTEM]
    for key, names in (("do-dbs", list(block.do_dbs)), ("ignore-dbs", ignored)):
        yield from _match_databases(f"block-allow-list.{key}", names, compile_wildcard, tables)
    for key, pairs in (("do-tables", block.do_tables), ("ignore-tables", block.ignore_tables)):
        yield from _match_tables(f"block-allow-list.{key}", pairs, compile_wildcard, SOURCE, tables)


def _match_databases(
    place: str, names: Iterable[str], compile_name: _Compile, tables: Sequence[Name]
) -> Iterator[RuleMatch]:
    for text in names:
        pattern = compile_name(text)
        yield RuleMatch(place, text, SOURCE, tuple(name for name in tables if pattern.matches(name[0])))


def _match_tables(
    place: str, pairs: Iterable[TableName], compile_name: _Compile, seen: str, tables: Sequence[Name]
) -> Iterator[RuleMatch]:
    for pair in pairs:
        found = _select(compile_name(pair.db_name), compile_name(pair.tbl_name), tables)
        yield RuleMatch(place, f"{pair.db_name} / {pair.tbl_name}", seen, found)


def _match_pairs(replication: Replication, tables: Sequence[Name]) -> Iterator[RuleMatch]:
    """Event rules, routes and expression rules."""
    for place, rules in (("filters", replication.filters), ("routes", replication.routes)):
        for rule in rules:
            table = compile_wildcard(rule.table_pattern) if rule.table_pattern else None
            text = rule.schema_pattern + (f" / {rule.table_pattern}" if rule.table_pattern else "")
            found = _select(compile_wildcard(rule.schema_pattern), table, tables)
            yield RuleMatch(place, text, REPLICATED, found)
    for expression in replication.expression_filter:
        wanted = fold_pair((expression.schema_, expression.table))
        found = tuple(name for name in tables if fold_pair(name) == wanted)
        yield RuleMatch("expression-filter", f"{expression.schema_} / {expression.table}", REPLICATED, found)


def _match_target_names(replication: Replication, tables: Sequence[Name]) -> Iterator[RuleMatch]:
    if replication.target is not None:
        pairs = replication.target.tables
        yield from _match_tables("target.tables", pairs, compile_drainer_pattern, AT_TARGET, tables)
    for feed in replication.feed:
        yield from _match_feed_patterns(feed.name, "rules", feed.rules, tables)
        for dispatcher in feed.dispatchers:
            yield from _match_feed_patterns(feed.name, "dispatchers.matcher", dispatcher.matcher, tables)


def _match_feed_patterns(feed: str, key: str, patterns: Iterable[str], tables: Sequence[Name]) -> Iterator[RuleMatch]:
    for text in map(str.strip, patterns):
        if text and not text.startswith("#"):
            matcher = TableMatcher([text.removeprefix("!")])
            found = tuple(name for name in tables if matcher.matches(*name))
            yield RuleMatch(f"feed {feed}: {key}", text, AT_TARGET, found, feed)


def _select(db: Pattern, table: Pattern | None, tables: Sequence[Name]) -> tuple[Name, ...]:
    return tuple(name for name in tables if db.matches(name[0]) and (table is None or table.matches(name[1])))
