"""The first start of a source: the place at which its log is read, and the definitions of that place.

The definitions and the place become durable in one step, as jobs of the history without binlogs: what is behind the
pumps begins with them, and the target has these tables already. (A snapshot publishes them: `snapshot/`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import structlog
from pymysql.cursors import DictCursor

from binlake.errors import ConfigError, Transient
from binlake.mysqlbinlog.definitions.described import (
    SESSION,
    DatabaseDescription,
    Query,
    describe_databases,
    describe_table,
    list_tables,
    visible_column,
)
from binlake.mysqlbinlog.model import Position
from pump_service.feeder.catalog import Catalog
from pump_service.feeder.journal import Journal, Place
from pump_service.feeder.publisher import Publisher
from pump_service.feeder.server import Link, connect, flavor_of, log_end
from pump_service.feeder.settings import SourceFile

log = structlog.get_logger()

_TRIES = 10  # readings of definitions between which DDL may run


def begin_at_log(source: SourceFile, journal: Journal, publisher: Publisher, catalog: Catalog) -> None:
    """Make the place of `source.start` and the definitions that the source has now durable.

    Raises SourceUnavailable, SourceRefused, SchemaError, Transient when DDL never rests, ConfigError for a snapshot.
    """
    if source.start.mode == "snapshot":
        raise ConfigError(
            "a feeder takes no snapshot yet", where={"source": source.name},
            hint='load the target yourself and set mode = "gtid" or "position" in [source.start], or "now"',
        )  # fmt: skip
    with closing(connect(source)) as link:
        databases, end = _definitions_at_end(link)
    start = source.start
    place = {
        "now": end,
        "gtid": Position("", 4, start.gtid),
        "position": Position(start.file, start.offset),
    }[start.mode]
    with catalog.lock:
        changes = catalog.adopt(source.name, databases)
        ts = publisher.fetch_ts(source.name)
        journal.commit([], {source.name: Place(place)}, jobs=[change.job(ts, ts) for change in changes])
    log.info("source_begins", source=source.name, mode=start.mode, definitions=len(changes), **_shown(place))


def _definitions_at_end(link: Link) -> tuple[list[DatabaseDescription], Position]:
    """The definitions, and an end of the log at which they hold: equal readings before and after it."""
    before = _describe_all(link)
    for _ in range(_TRIES):
        end = log_end(link)
        after = _describe_all(link)
        if after == before:
            return after, end
        before = after
    raise Transient("the source's definitions change all the time", hint="start again when its DDL is over")


def _describe_all(link: Link) -> list[DatabaseDescription]:
    def query(sql: str, arguments: Sequence[object]) -> Iterable[Mapping[str, Any]]:
        with link.cursor(DictCursor) as cursor:
            cursor.execute(sql, tuple(arguments) or None)
            return [{name.upper(): value for name, value in row.items()} for row in cursor.fetchall()]

    for statement in SESSION:
        query(statement, ())
    visible = visible_column(query)
    return [_with_tables(query, database, flavor_of(link), visible) for database in describe_databases(query)]


def _with_tables(query: Query, database: DatabaseDescription, flavor: Any, visible: str) -> DatabaseDescription:
    found = (describe_table(query, flavor, database.name, name, visible) for name in list_tables(query, database.name))
    return replace(database, tables=tuple(table for table in found if table is not None))


def _shown(place: Position) -> dict[str, object]:
    return {"file": place.file, "offset": place.offset, "gtids": place.gtids}
