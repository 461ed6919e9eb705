"""The first start of a source: the place at which its log is read, and the definitions of that place.

The definitions and the place become durable in one step, as jobs of the history without binlogs: what is behind the
pumps begins with them, and the target has these tables already. (A snapshot publishes them: `snapshot/`.)
"""

from __future__ import annotations

from contextlib import closing

import structlog

from binlake.errors import ConfigError, Transient
from binlake.mysqlbinlog.definitions.described import DatabaseDescription
from binlake.mysqlbinlog.dumpfolder import DumpFolder, read_dump_folder
from binlake.mysqlbinlog.model import Position
from pump_service.feeder.catalog import Catalog
from pump_service.feeder.dumpfolder import read_schema_files
from pump_service.feeder.journal import Journal, Place
from pump_service.feeder.publisher import Publisher
from pump_service.feeder.server import Link, connect, flavor_of, log_end
from pump_service.feeder.settings import SourceFile, Start
from pump_service.feeder.snapshot.structures import describe_source
from pump_service.feeder.startplace import SERVER, read_identity
from pump_service.feeder.targetstructure import describe_by_target

log = structlog.get_logger()

_TRIES = 10  # readings of definitions between which DDL may run


def begin_at_log(source: SourceFile, journal: Journal, publisher: Publisher, catalog: Catalog) -> None:
    """Make the place of `source.start` durable, and its definitions: of a dump, of the target, or the source's of now.

    Raises ConfigError, SourceUnavailable, SourceRefused, SchemaError, and Transient when DDL never rests.
    """
    start = source.start
    dump = read_dump_folder(start.definitions) if start.definitions is not None else None
    dumped = read_schema_files(dump) if dump is not None else None
    end, databases, facts = Position("", 4), list[DatabaseDescription](), dict[str, str]()
    if dumped is None or start.mode == "now":
        with closing(connect(source)) as link:
            databases, end = _definitions_at_end(link)
            facts = {SERVER + source.name: read_identity(link, flavor_of(link)).uuid} if start.mode == "now" else {}
    if start.target is not None:
        databases = describe_by_target(source, databases, start.target)
    place = _place_of(start, end, dump)
    with catalog.lock:
        first = catalog.adopt(source.name, databases) if dumped is None else catalog.follow_all(source.name, dumped)
        ts = publisher.fetch_ts(source.name)
        journal.commit([], {source.name: Place(place)}, jobs=[change.job(ts, ts) for change in first], facts=facts)
    log.info("source_begins", source=source.name, mode=start.mode, definitions=len(first), **_shown(place))


def _place_of(start: Start, end: Position, dump: DumpFolder | None) -> Position:
    """Where the log is read from; `end`: where it ends now; `dump`: the one of the definitions."""
    if start.mode == "dump" and dump is not None:
        place = dump.place
        if place.commit_ts:
            raise ConfigError(
                "the dump is one of TiDB, and the feeder reads MySQL and MariaDB",
                where={"folder": dump.path},
                hint="binlake checkpoint set --base: pumps behind TiDB need no feeder",
            )
        return place.position
    if start.mode == "now":
        return end
    return Position("", 4, start.gtid) if start.mode == "gtid" else Position(start.file, start.offset)


def _definitions_at_end(link: Link) -> tuple[list[DatabaseDescription], Position]:
    """The definitions, and an end of the log at which they hold: equal readings before and after it."""
    before = describe_source(link)
    for _ in range(_TRIES):
        end = log_end(link)
        after = describe_source(link)
        if after == before:
            return after, end
        before = after
    raise Transient("the source's definitions change all the time", hint="start again when its DDL is over")


def _shown(place: Position) -> dict[str, object]:
    return {"file": place.file, "offset": place.offset, "gtids": place.gtids}
