"""Finds, from the lake's history, the order in which the source had the schemas of a feed's topics.

Rule: sending a range again must never make an older schema the newest one of its subject, because consumers and
compatibility rules would use it from then on (hazards R-31).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property

from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.ddl.definitions import LandedDdl, WindowDefinitions
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import ConfigError
from binlake.feed.protocols import format_of
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.rules import Rules

MayRegister = Callable[[str, str, str, str], bool]
"""(topic, part, schema, newest of the subject) -> whether the schema may follow the newest; `part`: key or value."""


class SchemaOrder:
    """The order of schemas in the landed range (lo, hi]."""

    def __init__(self, replication: Replication, feed: FeedSection, lo: int, hi: int) -> None:
        self._replication, self._feed, self._lo, self._hi = replication, feed, lo, hi

    def may_follow(self, topic: str, part: str, schema: str, newest: str) -> bool:
        """True when the source had `newest` at `topic` only before it had `schema`."""
        texts = self._list_schema_texts(topic, part)
        numbers = [number for number, text in enumerate(texts) if _are_equal(text, schema)]
        before = [number for number, text in enumerate(texts) if _are_equal(text, newest)]
        return bool(numbers and before) and max(before) < min(numbers)

    def _list_schema_texts(self, topic: str, part: str) -> list[str]:
        format_, (definitions, places) = format_of(self._feed.options), self._history
        texts = []
        for db, table in sorted(self._names):
            if not self._feed.tables.matches(db, table) or self._feed.topics.find_topic(db, table) != topic:
                continue
            for place in places:
                definition = definitions.find_at(db, table, place)
                if definition is None:
                    continue
                try:
                    schemas = format_.build_schemas(definition)
                except ConfigError:
                    # The table had no schema then, so its rows were not sent.
                    continue
                texts.append((schemas.key if part == "key" else schemas.value) or "")
        return texts

    @cached_property
    def _history(self) -> tuple[WindowDefinitions, list[int]]:
        return WindowDefinitions(self._base, self._ddls), sorted({self._lo, *(ddl.since for ddl in self._ddls)})

    @cached_property
    def _names(self) -> set[tuple[str, str]]:
        return {*self._base.list_names(), *((table.db, table.name) for ddl in self._ddls for table in ddl.after.tables)}

    @cached_property
    def _ddls(self) -> list[LandedDdl]:
        return read_landed_ddls(self._paths, self._lo, self._hi)

    @cached_property
    def _base(self) -> TargetTables:
        return TargetTables(SchemaHistory(self._paths).read_state_at(self._lo), Naming(Rules.of(self._replication)))

    @property
    def _paths(self) -> LakePaths:
        return LakePaths.of(self._replication)


def _are_equal(first: str, second: str) -> bool:
    # A registry may return a schema in another format.
    return first == second or (bool(first) and bool(second) and json.loads(first) == json.loads(second))
