"""Commits a round of a load beside the log, once the log is published exactly up to its snapshot.

What is published, what is recorded of the load, and the settings that take effect with it are one durable step.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.errors import BinlakeError, SharedFailure
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.parts import Parts
from binlake.pump_service.feeder.publisher import UncommittedBatches
from binlake.pump_service.feeder.snapshot.addedtables import AddedTables
from binlake.pump_service.feeder.snapshot.chunkwriter import PrewrittenChunk
from binlake.pump_service.feeder.snapshot.described import build_definitions
from binlake.pump_service.feeder.snapshot.selection import FollowedTables
from binlake.pump_service.feeder.snapshot.tableround import Round, abandon_chunks


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
