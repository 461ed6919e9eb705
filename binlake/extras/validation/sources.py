"""Reads the source's rows with some keys: at the target's checkpoint if possible, else the present rows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from binlake.base.sql import Dialect
from binlake.changes.net import encode_row_key
from binlake.config import Replication
from binlake.config.servers import TargetSection, ValidatedSource
from binlake.errors import BinlakeError, SourceUnavailable
from binlake.extras.validation.positions import LogPosition, find_published_ts, read_feeder_positions, read_log_position
from binlake.extras.validation.proof import Positions
from binlake.repair.chunks import AnyKey, ChunkPlan, Cuts, build_fold
from binlake.repair.differences import Row
from binlake.repair.lakeside import Name, VerifiedTable
from binlake.repair.serverside import SqlTable, open_source_snapshot
from binlake.repair.verify import list_rules_that_change_rows, require_source_server
from binlake.rows.codec import format_key_text
from binlake.rows.schema import TableDef
from binlake.target.session.session import TargetSession

log = structlog.get_logger(__name__)

_ABSENT = "-"


@dataclass(frozen=True)
class SourceRows:
    """The source's `rows` with one of the keys; `is_fresh`, `positions`: as in `Reading`."""

    rows: list[Row]
    is_fresh: bool = True
    positions: Positions = field(default_factory=dict)


class SourceReader(Protocol):
    """A source that can be queried. `is_exact`: its rows are those of the checkpoint, so they need no proof."""

    is_exact: bool

    def read_rows_by_key(self, verified: VerifiedTable, keys: Sequence[AnyKey]) -> SourceRows:
        """The rows with one of `keys`. Raises BinlakeError."""

    def find_published_ts(self, positions: Positions) -> int | None:
        """See `proof.Published`. Raises BinlakeError."""


@contextmanager
def open_source(replication: Replication, ts: int) -> Iterator[SourceReader | str]:
    """The source of `replication`, to be read at `ts`; or the reason why it is not queried."""
    with ExitStack() as stack:
        yield _open(stack, replication, ts)


def _open(stack: ExitStack, replication: Replication, ts: int) -> SourceReader | str:
    changing = list_rules_that_change_rows(replication)
    if changing:
        return f"with {changing[0]} the target is not a copy of the source"
    dialect = replication.require_sql_target().db_type
    try:
        if replication.validation.source:
            return _FeederServers(stack, replication, dialect)
        if replication.source.sql is None:
            return "the source does not accept SQL: there is neither [source.sql] nor [[validation.source]]"
        session = stack.enter_context(open_source_snapshot(require_source_server(replication), ts, stands_still=False))
        return _TidbAtCheckpoint(session, dialect)
    except BinlakeError as error:
        return error.message


class _TidbAtCheckpoint:
    """A TiDB, in a session whose `tidb_snapshot` is the checkpoint."""

    is_exact = True

    def __init__(self, session: TargetSession, dialect: Dialect) -> None:
        self._session, self._dialect = session, dialect

    def read_rows_by_key(self, verified: VerifiedTable, keys: Sequence[AnyKey]) -> SourceRows:
        return SourceRows(read_rows_by_key(self._session, verified.expected, verified.sources, keys, self._dialect))

    def find_published_ts(self, positions: Positions) -> int | None:
        raise TypeError(f"rows of the checkpoint need no proof by {sorted(positions)}")


class _FeederServers:
    """The present state of the servers behind a feeder."""

    is_exact = False

    def __init__(self, stack: ExitStack, replication: Replication, dialect: Dialect) -> None:
        self._stack, self._dialect = stack, dialect
        self._source, self._servers = replication.source, replication.validation.source
        self._sessions: dict[str, TargetSession] = {}
        # Read after the target's checkpoint: everything below the checkpoint is published by now.
        self._before = read_feeder_positions(self._source)

    def read_rows_by_key(self, verified: VerifiedTable, keys: Sequence[AnyKey]) -> SourceRows:
        rows: list[Row] = []
        is_fresh, positions = True, dict[str, str]()
        for server, names in self._group_tables_by_server(verified).items():
            session = self._open_session(server)
            is_fresh &= self._has_all_of_feeder(server, read_log_position(session))
            rows += read_rows_by_key(session, verified.expected, names, keys, self._dialect)
            positions[server.name] = read_log_position(session).to_json()
        return SourceRows(rows, is_fresh, positions)

    def find_published_ts(self, positions: Positions) -> int | None:
        """What the feeder reports now. None if it no longer answers: the row then waits for the next run."""
        try:
            return find_published_ts(read_feeder_positions(self._source), positions)
        except BinlakeError as error:
            log.warning("feeder_not_asked", error=str(error))
            return None

    def _has_all_of_feeder(self, server: ValidatedSource, position: LogPosition) -> bool:
        fed = self._before.get(server.name)
        return fed is not None and position.has_done(fed.to_log_position(position.flavor))

    def _group_tables_by_server(self, verified: VerifiedTable) -> dict[ValidatedSource, list[Name]]:
        by_server: dict[ValidatedSource, list[Name]] = {}
        for db, table in verified.sources:
            server, schema = self._find_server(db, table)
            by_server.setdefault(server, []).append((schema, table))
        return by_server

    def _find_server(self, db: str, table: str) -> tuple[ValidatedSource, str]:
        for server in self._servers:
            schema = server.find_schema(db)
            if schema is not None and self._has_table(server, schema, table):
                return server, schema
        raise SourceUnavailable("no server of [[validation.source]] has the table", where={"table": f"{db}.{table}"})

    def _has_table(self, server: ValidatedSource, schema: str, table: str) -> bool:
        query = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        return bool(self._open_session(server).fetch_rows(query, [schema, table]))

    def _open_session(self, server: ValidatedSource) -> TargetSession:
        if server.name not in self._sessions:
            made = TargetSection(
                host=server.host, port=server.port, user=server.user, password=server.password, db_type="mysql",
                security=server.security,
            )  # fmt: skip
            self._sessions[server.name] = self._stack.enter_context(closing(TargetSession(made)))
        return self._sessions[server.name]


def read_rows_by_key(
    session: TargetSession, table: TableDef, names: Sequence[Name], keys: Sequence[AnyKey], dialect: Dialect
) -> list[Row]:
    """The rows of the tables `names` whose key is exactly one of `keys`. Raises BinlakeError."""
    texts = {format_key_text(list(key)) for key in keys}
    rows = SqlTable(session, ChunkPlan(table, dialect, Cuts()), names).read_rows_by_key(keys)
    columns = table.find_identity().columns
    # A collation may match other keys too.
    return [row for row in rows if encode_row_key(row, columns) in texts]


def compute_row_digests(table: TableDef, rows: Collection[Row]) -> Mapping[str, str]:
    """By key, the digest of each row's values. `look_up_digest` also covers rows that do not exist."""
    folds = [(column.name, build_fold(column)) for column in table.row_columns]
    columns = table.find_identity().columns
    return {encode_row_key(row, columns): _compute_digest([fold(row[name]) for name, fold in folds]) for row in rows}


def look_up_digest(digests: Mapping[str, str], key: str) -> str:
    """The digest of the row with `key`, or the one for a row that does not exist."""
    return digests.get(key, _ABSENT)


def _compute_digest(values: Sequence[str | None]) -> str:
    return hashlib.sha256(format_key_text(list(values)).encode(), usedforsecurity=False).hexdigest()
