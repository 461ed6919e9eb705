"""The schemas' ids that the headers of keys and values have (reference 2.1), asked in the order of the source.

Rule: schemas are requested from the registry in the order of the messages, and only if they are needed; messages
without a schema need no registry. The lake's history tells the order in which the source had the schemas of a feed's
topics: sending a range again must never make an older schema the newest one of its subject, because consumers and
compatibility rules would use it from then on (hazards R-31).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import encode_dictionary
from binlake.common.lakecolumns import Message
from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.ddl.definitions import LandedDdl, WindowDefinitions
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import ConfigError
from binlake.feed.protocols import format_of
from binlake.feed.registry import SchemaRefused, SchemaRegistry, encode_header
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.rules import Rules
from binlake.rules.topics import format_subject

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


_BETWEEN = "\n"
"""The separator of topic and fingerprints, which do not contain it."""


class SchemaIds:
    """The headers of one feed's messages. `refused`: the registry's error for the first refused schema.

    `may_register`: for messages that are sent again: which schemas may become the newest of their subject.
    """

    def __init__(self, feed: FeedSection, may_register: MayRegister | None = None) -> None:
        self._feed, self._may_register = feed, may_register
        self._registry: SchemaRegistry | None = None
        self._headers: dict[tuple[str, str, str], bytes] = {}
        self.refused: SchemaRefused | None = None

    def __enter__(self) -> SchemaIds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._registry is not None:
            self._registry.__exit__(kind, error, trace)

    def add_headers(self, messages: pa.Table, schemas: Mapping[str, str]) -> pa.Table:
        """`messages` with headers, up to the first one whose schema the registry refuses; then `refused` is set.

        `schemas`: texts by fingerprint. Raises Transient, Permanent, ConfigError.
        """
        messages = messages.combine_chunks()
        names = _encode_names(messages)
        keys, values = [], []
        for number, name in enumerate(names.dictionary.to_pylist()):
            topic, key, value = name.split(_BETWEEN)
            try:
                headers = [
                    self._build_header(topic, "key", key, schemas),
                    self._build_header(topic, "value", value, schemas),
                ]
            except SchemaRefused as error:
                self.refused = error
                first = int(np.argmax(np.asarray(names.indices) == number))
                messages, names = messages.slice(0, first).combine_chunks(), names[:first]
                break
            keys.append(headers[0])
            values.append(headers[1])
        for column, headers in ((Message.KEY, keys), (Message.VALUE, values)):
            if any(headers):
                place = messages.schema.get_field_index(column)
                bodies = _prepend_headers(headers, names.indices, messages.column(column))
                messages = messages.set_column(place, messages.schema.field(column), bodies)
        return messages

    def _build_header(self, topic: str, part: str, schema: str, schemas: Mapping[str, str]) -> bytes:
        if not schema:
            return b""
        name = (topic, part, schema)
        if name not in self._headers:
            self._headers[name] = encode_header(self._find_or_register(topic, part, schemas[schema]))
        return self._headers[name]

    def _find_or_register(self, topic: str, part: str, schema: str) -> int:
        subject, registry = format_subject(topic, part), self._open_registry()
        try:
            if self._may_register is not None:
                found, newest = registry.find(subject, schema), registry.find_newest_schema(subject)
                if found is not None:
                    return found
                if newest is not None and not self._may_register(topic, part, schema, newest):
                    raise SchemaRefused(
                        "a schema of that time is not registered, and would become the newest of its subject",
                        where={"registry": registry.shown},
                        hint="send the range to separate topics (--topic), whose subjects begin with that schema",
                    )
            return registry.register_schema(subject, schema)
        except SchemaRefused as error:
            where = {**error.where, "subject": subject}
            raise SchemaRefused(error.message, where=where, hint=error.hint) from None

    def _open_registry(self) -> SchemaRegistry:
        if self._registry is None:
            if not self._feed.schema_registry:
                raise ConfigError(
                    "a feed of this protocol needs a schema registry",
                    where={"feed": self._feed.name, "protocol": self._feed.sink.protocol},
                    hint="set schema-registry",
                )
            registry = SchemaRegistry(self._feed.schema_registry)
            registry.require_answer()
            self._registry = registry
        return self._registry


def _encode_names(messages: pa.Table) -> Any:
    """Each message's topic and the schemas that it needs, as a dictionary array in order of appearance."""
    # A deletion has no value.
    value = pc.if_else(pc.is_valid(messages.column(Message.VALUE)), messages.column(Message.VALUE_SCHEMA), None)
    parts = [messages.column(Message.TOPIC), messages.column(Message.KEY_SCHEMA), value]
    texts = [pc.fill_null(part, "").cast(pa.string()) for part in parts]
    return encode_dictionary(pc.binary_join_element_wise(*texts, _BETWEEN))


def _prepend_headers(headers: list[bytes], which: Any, bodies: Any) -> Any:
    """Prepend the header to each body; NULL stays NULL."""
    return pc.binary_join_element_wise(pa.array(headers, pa.binary()).take(which), bodies, b"")
