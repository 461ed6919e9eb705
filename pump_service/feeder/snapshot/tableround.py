"""One round of a load beside the log: some ranges of tables, read in one snapshot, prewritten and committed.

It is committed when the log has been published up to the snapshot, and not beyond: then its rows are what the source
has there. So a round is short, and the log waits for it. What is published, what is recorded of the load, and the
settings that take effect with it are one durable step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from binlake.dialect.classify import read_name
from binlake.dialect.tokens import Token
from binlake.errors import BinlakeError, SharedFailure, SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, mask_four_byte_characters
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.mysqlbinlog.tablerows.link import Link, Name
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.dump import read_identity
from binlake.pump_service.feeder.parts import Parts
from binlake.pump_service.feeder.publisher import SourcePublisher, UncommittedBatches
from binlake.pump_service.feeder.server import derive_flavor
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.addedtables import AddedTables
from binlake.pump_service.feeder.snapshot.catchup import SnapshotBoundary
from binlake.pump_service.feeder.snapshot.chunkwriter import ChunkPrewriter, PrewrittenChunk
from binlake.pump_service.feeder.snapshot.control import Throttle
from binlake.pump_service.feeder.snapshot.opening import (
    OneServer,
    SourceSnapshots,
    build_definitions,
    build_id_prefix,
    open_described_snapshot,
    open_snapshot,
)
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress, TableLoad
from binlake.pump_service.feeder.snapshot.reading import SnapshotChanged, SnapshotReader, SnapshotTable
from binlake.pump_service.feeder.snapshot.selection import FollowedTables
from binlake.pump_service.feeder.snapshot.structures import count_moves, estimate_rows, read_create_text
from binlake.rows.schema import TableDef

_NAME_AT = len(("CREATE", "TABLE"))

ROUND_S = 2.0
"""Seconds after which a round begins no further range: for so long the log waits."""


@dataclass
class Round:
    """What was read in the snapshot at `boundary`. `databases`: all definitions there, None for a round of rows;
    `definitions`: with which the rows of `chunks` were encoded; `prefix`: of its transactions' identities; `began_ms`:
    their time."""

    boundary: SnapshotBoundary
    prefix: str
    began_ms: int
    guesses: Mapping[Name, int]
    databases: Sequence[DatabaseDescription] | None = None
    definitions: Mapping[Name, TableDef] = field(default_factory=dict)
    chunks: list[PrewrittenChunk] = field(default_factory=list)


@dataclass(frozen=True)
class Published:
    """How far the log is published: `position`, read at `server`; `number`: of the next round."""

    position: BinlogPosition
    server: str
    number: int


def describe_in_round(
    source: SourceFile, published: Published, select: Callable[[Sequence[DatabaseDescription]], Iterable[Name]]
) -> Round:
    """A round of definitions, for the tables that `select` chooses. Raises SourceUnavailable, SourceRefused, pymysql's
    errors."""
    snapshot, databases, _ = open_described_snapshot(source, threads=1)
    with snapshot:
        guesses = estimate_rows(snapshot.sessions[0], select(databases))
        return _begin_round(snapshot, published, guesses, databases)


def read_in_round(
    source: SourceFile,
    published: Published,
    tables: Mapping[Name, TableLoad],
    definitions: Mapping[Name, TableDef],
    version: int,
    publisher: SourcePublisher,
    progress: SnapshotProgress,
    throttle: Throttle,
    check: Callable[[], None],
) -> Round:
    """A round of rows of `tables`, whose ranges it claims. `version`: that of `definitions`; `check`: called meanwhile,
    raises to give the round up. Raises SnapshotChanged, SourceUnavailable, SourceRefused, pymysql's errors; then its
    prewrites are rolled back."""
    server = OneServer(source)
    with closing(server.connect()) as link:
        moves = count_moves(link)
        if not moves:
            raise SourceRefused("the server does not count its ALTER and RENAME statements (SHOW GLOBAL STATUS)")
        flavor = derive_flavor(link)
        texts = {name: _require_definition(link, flavor, name, definitions[name]) for name in tables}
        snapshot = open_snapshot(server.connect, flavor, source.snapshot.threads, list(tables))
    with snapshot:
        begun = _begin_round(snapshot, published, estimate_rows(snapshot.sessions[0], tables))
        begun.definitions = definitions
        numbers, asked = itertools.count(1), itertools.count(1)
        prewriter = ChunkPrewriter(
            publisher, source.name, begun.began_ms, lambda: f"{begun.prefix}-{next(numbers)}", begun.chunks.extend
        )
        over_at = time.monotonic() + ROUND_S
        reader = SnapshotReader(
            snapshot,
            [SnapshotTable(name, definitions[name], texts[name], load.ranges) for name, load in tables.items()],
            version,
            progress,
            chunk_rows=source.snapshot.chunk_rows,
            most_rows=source.snapshot.chunk_rows,
            moves=moves,
            invalid_text=source.invalid_text,
            form=source.snapshot.form,
            throttle=throttle,
            idle=check,
            # Each session reads a range: without one, a round would be for nothing.
            is_over=lambda: next(asked) > len(snapshot.sessions)
            and (time.monotonic() >= over_at or throttle.find_wait_s() > 0),
        )  # fmt: skip
        try:
            with closing(reader.read_values()) as values:
                for value in values:
                    check()
                    prewriter.add(value)
            prewriter.flush()
        except BaseException:
            abandon_chunks(publisher, source.name, begun.chunks)
            raise
        finally:
            prewriter.abandon()
    return begun


def abandon_chunks(publisher: SourcePublisher, source: str, chunks: Sequence[PrewrittenChunk]) -> None:
    """Roll back the prewrites of `chunks`."""
    publisher.abandon(UncommittedBatches(source, [batch for chunk in chunks for batch in chunk.batches]))


def _require_definition(link: Link, flavor: Flavor, name: Name, definition: TableDef) -> str:
    """The CREATE statement of a table at the source. Raises SnapshotChanged if it is not that of `definition`."""
    text = read_create_text(link, name)
    if text is None or _read_body(text, flavor) != _read_body(definition.raw[CREATE_KEY], flavor):
        raise SnapshotChanged(name)
    return text


def _read_body(create: str, flavor: Flavor) -> list[Token]:
    """What follows the name: names and white space differ where the definition was taken from a tracker."""
    tokens = create_tokens(mask_four_byte_characters(create), flavor)
    return list(tokens[read_name(tokens, _NAME_AT)[1] :])


def _begin_round(
    snapshot: SourceSnapshots,
    published: Published,
    guesses: Mapping[Name, int],
    databases: Sequence[DatabaseDescription] | None = None,
) -> Round:
    boundary = SnapshotBoundary(snapshot.flavor, snapshot.position)
    _require_same_log(snapshot.sessions[0], snapshot, boundary, published)
    prefix = f"{build_id_prefix(snapshot.position)}-table-{published.number}"
    return Round(boundary, prefix, time.time_ns() // 1_000_000, guesses, databases)


def _require_same_log(link: Link, snapshot: SourceSnapshots, boundary: SnapshotBoundary, published: Published) -> None:
    """The snapshot must include everything that is published. Raises SourceUnavailable: another server may have it."""
    if not snapshot.position.gtids:
        server = read_identity(link, snapshot.flavor).uuid
        if published.server not in ("", server):
            raise SourceUnavailable(
                f"tables are to be read at server {server}, the log is read at {published.server}, and there are no"
                " GTIDs"
            )
    if not boundary.is_at_or_after(published.position):
        raise SourceUnavailable("the server whose tables are to be read lacks transactions that are published")


def select_new_tables(
    databases: Sequence[DatabaseDescription], state: AddedTables, followed: FollowedTables
) -> tuple[set[Name], set[Name]]:
    """The tables that are created in a round of definitions, and those of them whose rows are read afterwards."""
    names = [(table.db, table.name) for database in databases for table in database.tables]
    new = followed.list_new(names)
    return state.wanted | set(new), state.wanted | {name for name in new if followed.present.has_rows_of(*name)}


def commit_definitions(
    done: Round, state: AddedTables, followed: FollowedTables, catalog: Catalog, parts: Parts
) -> None:
    """Drop and create the tables of a round of definitions. Raises SchemaError for a definition that is not supported,
    SharedFailure when the catalog has what is not published."""
    source = state.source
    created, loaded = select_new_tables(done.databases or (), state, followed)
    if loaded - state.wanted:
        state.want(loaded - state.wanted, parts.publisher.fetch_ts(source))
    with catalog.lock:
        restore = followed.take_effect()
        try:
            changes = catalog.renew_tables(source, done.databases or (), created)
        except BaseException:
            restore()
            raise
        found = {name: catalog.find_table(source, *name) for name in loaded}
        state.begin({name: table for name, table in found.items() if table is not None})
        state.rounds += 1
        facts = {**state.build_facts(), **followed.present.build_facts()}
        if not changes:
            parts.journal.set_facts(facts)
            return
        try:
            parts.publisher.publish(source, build_definitions(changes, done.prefix, done.began_ms), None, facts)
        except BinlakeError as error:
            raise SharedFailure(error.message, hint=error.hint, where=error.where) from error
        parts.version = catalog.version


def commit_rows(done: Round, state: AddedTables, catalog: Catalog, parts: Parts) -> None:
    """Commit the ranges of a round, but not those of tables whose definition or name may have changed meanwhile: these
    are rolled back, and read again."""
    final = [chunk for chunk in done.chunks if _is_final(chunk, done, state, catalog)]
    left = [chunk for chunk in done.chunks if chunk not in final]
    abandon_chunks(parts.publisher, state.source, left)
    for chunk in final:
        assert chunk.end is not None
        load = state.tables[chunk.end.name]
        load.ranges.finish(chunk.end.chunk.low, chunk.end.chunk.high, 0)
        load.rows += chunk.rows
        load.bytes += chunk.bytes
        load.chunks += 1
        load.is_visible |= chunk.rows > 0
    if left:
        state.release_claims()
    state.rounds += 1
    state.finish_complete()
    batches = [batch for chunk in final for batch in chunk.batches]
    if batches:
        parts.publisher.commit(UncommittedBatches(state.source, batches), None, state.build_facts())
    else:
        parts.journal.set_facts(state.build_facts())


def _is_final(chunk: PrewrittenChunk, done: Round, state: AddedTables, catalog: Catalog) -> bool:
    end = chunk.end
    if end is None or end.may_have_moved or end.name not in state.tables:
        return False
    definition = done.definitions[end.name]
    now = catalog.find_table(state.source, *end.name)
    return now is not None and now.id == state.tables[end.name].table_id == definition.id and now.raw == definition.raw
