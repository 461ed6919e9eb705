"""A snapshot together with the definitions of the source's tables that hold in it, and these as outgoing DDL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from binlake.errors import SourceUnavailable
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription
from binlake.mysqlbinlog.definitions.writer import DefinitionChange
from binlake.mysqlbinlog.model import BinlogPosition
from binlake.pump_service.feeder.publisher import Outgoing, PublishedDdl
from binlake.pump_service.feeder.server import derive_flavor
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.oneserver import OneServer
from binlake.pump_service.feeder.snapshot.opening import SourceSnapshots, open_snapshot
from binlake.pump_service.feeder.snapshot.structures import count_moves, describe_source

_TRIES = 10  # times a snapshot is opened before giving up because DDL keeps running


class DescribedSnapshot(NamedTuple):
    """An open snapshot, the definitions of its tables, and the count of moved names before it (`count_moves`)."""

    snapshot: SourceSnapshots
    databases: list[DatabaseDescription]
    moves: tuple[int, ...]


def open_described_snapshot(source: SourceFile, threads: int = 0) -> DescribedSnapshot:
    """A snapshot with at most `threads` sessions (0 = those of the settings), which the caller closes.

    Raises SourceUnavailable, SourceRefused.
    """
    server = OneServer(source)
    with closing(server.connect()) as link:
        before = describe_source(link)
        for _ in range(_TRIES):
            moves = count_moves(link)
            names = [(table.db, table.name) for database in before for table in database.tables]
            sessions = threads or source.snapshot.threads
            snapshot = open_snapshot(server.connect, derive_flavor(link), sessions, names)
            try:
                after = describe_source(link)
            except BaseException:
                snapshot.close()
                raise
            if after == before:
                return DescribedSnapshot(snapshot, after, moves)
            snapshot.close()
            before = after
    raise SourceUnavailable(
        "the source's definitions keep changing", hint="the load begins as soon as its DDL has finished"
    )


def build_id_prefix(position: BinlogPosition) -> str:
    """The beginning of the identities of a snapshot's transactions."""
    return f"snapshot-{position.file}:{position.offset}"


def build_definitions(changes: Sequence[DefinitionChange], prefix: str, began_ms: int) -> list[Outgoing]:
    """`changes` as transactions with the identities `prefix`-N; N is negative: these come before the rows."""
    return [
        Outgoing(
            f"{prefix}-{n - len(changes)}", began_ms,
            ddl=PublishedDdl(change.query, change.job_id, change.build_job, change.schema_state),
        )
        for n, change in enumerate(changes)
    ]  # fmt: skip
