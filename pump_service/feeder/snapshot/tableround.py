"""One round of a load beside the log: some ranges of tables, read in one snapshot and prewritten.

It is committed when the log has been published up to the snapshot, and not beyond: then its rows are what the source
has there. So a round is short, and the log waits for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from binlake.dialect.classify import read_name
from binlake.dialect.tokens import Token
from binlake.errors import SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, mask_four_byte_characters
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.mysqlbinlog.tablerows.link import Link, Name
from binlake.pump_service.feeder.publisher import SourcePublisher, UncommittedBatches
from binlake.pump_service.feeder.server import derive_flavor
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.boundary import SnapshotBoundary
from binlake.pump_service.feeder.snapshot.chunkwriter import ChunkPrewriter, PrewrittenChunk
from binlake.pump_service.feeder.snapshot.described import build_id_prefix, open_described_snapshot
from binlake.pump_service.feeder.snapshot.oneserver import OneServer
from binlake.pump_service.feeder.snapshot.opening import SourceSnapshots, open_snapshot
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.snapshot.reading import SnapshotChanged, SnapshotReader, SnapshotTable
from binlake.pump_service.feeder.snapshot.structures import count_moves, estimate_rows, read_create_text
from binlake.pump_service.feeder.snapshot.tableload import TableLoad
from binlake.pump_service.feeder.snapshot.throttle import Throttle
from binlake.pump_service.feeder.startposition import read_identity
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
