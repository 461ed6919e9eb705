"""Checks a feed before it runs: tables that it cannot send, shared topics, values that would overflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.config.protocols import AvroOptions
from binlake.config.sinkuri import list_storage_warnings
from binlake.ddl.targets import Naming
from binlake.errors import BinlakeError, ConfigError
from binlake.feed.protocols import format_of
from binlake.feed.registry import SchemaRegistry
from binlake.lake.paths import LakePaths
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.lake.windowlog import WindowLog
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rules import Rules


@dataclass(frozen=True)
class FeedReport:
    """The report on a feed: `refused`: why it cannot run; `warnings`; `topics`: by table."""

    feed: str
    refused: tuple[BinlakeError, ...] = ()
    warnings: tuple[str, ...] = ()
    topics: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For `--output json`."""
        return {"feed": self.feed, "verdict": "refused" if self.refused else "fit", "topics": dict(self.topics),
                "refusals": [str(error) for error in self.refused], "warnings": list(self.warnings)}  # fmt: skip


def check_tables(feed: FeedSection, tables: Iterable[TableDef], beside: Iterable[FeedSection] = ()) -> FeedReport:
    """Check the feed with the present `tables` (names of the target): S2-15, S2-32, S2-42, S2-46.

    `beside`: the replication's feeds; a topic that two of them write to is a warning.
    """
    own_tables = [table for table in tables if table.kind == "table" and feed.tables.matches(table.db, table.name)]
    form, refused, warnings, topics = format_of(feed.options), [], list_storage_warnings(feed.sink.storage), {}
    for table in own_tables:
        try:
            form.build_schemas(table)
            topics[f"{table.db}.{table.name}"] = feed.topics.find_topic(table.db, table.name)
        except ConfigError as error:
            refused.append(error)
        warnings += _list_overflows(feed, table)
    if not refused:
        try:
            feed.topics.require_own_topics((table.db, table.name) for table in own_tables)
        except ConfigError as error:
            refused.append(error)
    warnings += _list_double_topics(feed, own_tables, topics, beside)
    return FeedReport(feed.name, tuple(refused), tuple(warnings), topics)


def read_landed_tables(replication: Replication) -> list[TableDef] | None:
    """The tables at the end of the lake, with the target's names; None if nothing has landed."""
    paths = LakePaths.of(replication)
    windows = WindowLog(paths)
    landed = windows.find_landed_ts() if windows.exists() else None
    if landed is None:
        return None
    tables = read_target_tables_at(paths, Naming(Rules.of(replication)), landed).list_tables()
    return sorted(tables, key=lambda table: (table.db, table.name))


def require_servers_answer(feed: FeedSection) -> None:
    """Require that brokers and registry answer and accept the feed. Raises Transient, Permanent."""
    for error in find_connection_problems(feed):
        raise error


def find_connection_problems(feed: FeedSection) -> list[BinlakeError]:
    """The errors of brokers and registry that refuse the feed or cannot be reached."""
    problems: list[BinlakeError] = []
    for ask in (_ask_brokers, _ask_registry):
        try:
            ask(feed)
        except BinlakeError as error:
            problems.append(error)
    return problems


def _ask_brokers(feed: FeedSection) -> None:
    if feed.sink.kafka is not None:
        # Imported late: without such a feed no Kafka client is needed (S0-05).
        from binlake.feed.kafkaclient import require_brokers

        require_brokers(feed.sink.kafka)


def _ask_registry(feed: FeedSection) -> None:
    if feed.schema_registry:
        with SchemaRegistry(feed.schema_registry) as registry:
            registry.require_answer()


def _list_double_topics(
    feed: FeedSection, own_tables: Iterable[TableDef], topics: Mapping[str, str], beside: Iterable[FeedSection]
) -> list[str]:
    """Warnings for topics that two feeds write: consumers get each change twice, in no common order."""
    others = [other for other in beside if other.name != feed.name and _share_brokers(feed, other)]
    return [
        f"the feed {other.name} writes {table.db}.{table.name} to the topic {topic} too: its consumers get each change"
        " twice, in no common order; give one of the feeds other topics"
        for other in others
        for table in own_tables
        if (topic := topics.get(f"{table.db}.{table.name}")) is not None and topic == _find_topic(other, table)
    ]


def _find_topic(feed: FeedSection, table: TableDef) -> str | None:
    """The topic of the table; None if the feed does not, or cannot, send it."""
    try:
        return feed.topics.find_topic(table.db, table.name) if feed.tables.matches(table.db, table.name) else None
    except ConfigError:
        # Reported separately.
        return None


def _share_brokers(feed: FeedSection, other: FeedSection) -> bool:
    one, two = feed.sink.kafka, other.sink.kafka
    return one is not None and two is not None and not set(one.brokers).isdisjoint(two.brokers)


def _list_overflows(feed: FeedSection, table: TableDef) -> list[str]:
    if not isinstance(feed.options, AvroOptions) or feed.options.unsigned_bigints != "long":
        return []
    names = [column.name for column in table.row_columns if column.tp == t.LONGLONG and column.unsigned]
    mode = "avro-bigint-unsigned-handling-mode=string"
    return [
        f"{table.db}.{table.name}.{name} is BIGINT UNSIGNED: values above 9223372036854775807 arrive negative; {mode}"
        " sends them as text"
        for name in names
    ]
