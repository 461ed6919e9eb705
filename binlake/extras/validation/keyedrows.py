"""Rows with some keys, as the lake has them at the target's checkpoint, and as the source has them.

In the lake, the last change of a row gives its state, so the cost depends on these changes. If a DDL of the table came
after that change, the mirror is read, which includes the DDL. The source is read at the target's checkpoint if
possible; otherwise its present rows are read.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow.dataset as ds
import structlog

from binlake.audit.audit import Audit
from binlake.changes.net import compute_net_changes, encode_row_key
from binlake.common.lakecolumns import Mutation
from binlake.common.sql import Dialect
from binlake.config import Replication
from binlake.config.servers import TargetSection, ValidatedSource
from binlake.ddl.definitions import derive_key_defaults
from binlake.errors import BinlakeError, LostRange, SourceUnavailable
from binlake.extras.validation.proof import (
    LogPosition,
    Positions,
    find_published_ts,
    read_feeder_positions,
    read_log_position,
)
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import RowVersion, match_keys, match_table, read_changes
from binlake.lake.paths import LakePaths
from binlake.mirror.versions import IN_PART
from binlake.repair.chunks import AnyKey, ChunkPlan, Cuts, build_fold
from binlake.repair.differences import Row
from binlake.repair.lakeside import Name, VerifiedLakeTable, VerifiedTable
from binlake.repair.serverside import SqlTable, open_source_snapshot
from binlake.repair.verify import list_rules_that_change_rows, require_source_server
from binlake.rows.codec import format_key_text
from binlake.rows.schema import TableDef
from binlake.rows.schema.job import Action
from binlake.target.session.session import TargetSession

_FEW = 100
"""Up to this many keys are searched one by one using the files' statistics; more are matched as a set."""
log = structlog.get_logger(__name__)
_ABSENT = "-"


@dataclass(frozen=True)
class LakeRows:
    """`rows` with one of the keys. `changed`: the commit_ts of the last change of each key that has one.

    `unknown`: keys whose current row the lake cannot give; `why`: the reason.
    """

    rows: list[Row]
    changed: Mapping[str, int]
    unknown: frozenset[str] = frozenset()
    why: str = ""


def read_lake_rows(
    audit: Audit,
    paths: LakePaths,
    verified: VerifiedTable,
    keys: Collection[AnyKey],
    lo: int,
    ts: int,
    *,
    mirrored: bool,
) -> LakeRows:
    """The rows at `ts` with one of `keys`, each of which changed in (`lo`, `ts`]."""
    texts = {format_key_text(list(key)): key for key in keys}
    changes = read_changes(paths, lo, ts, match_table(*verified.name) & _build_key_filter(texts))
    changed: dict[str, int] = {}
    for change in changes:
        for key in {change.key, change.new_key or change.key}:
            changed[key] = change.commit_ts
    ddls = [ddl for ddl in read_landed_ddls(paths, lo, ts, verified.name) if ddl.action != Action.CREATE_TABLE]
    cut = max((ddl.commit_ts for ddl in ddls), default=lo)
    rows = _compute_net_rows(verified.table, [change for change in changes if change.commit_ts > cut])
    before = {text: key for text, key in texts.items() if changed.get(text, lo) <= cut}
    known = [row for key, row in rows.items() if key in texts and key not in before]
    if not before:
        return LakeRows(known, changed)
    try:
        return LakeRows(
            [*known, *_read_mirror_rows(audit, paths, verified, list(before.values()), ts, mirrored)], changed
        )
    except LostRange as error:
        return LakeRows(known, changed, frozenset(before), error.message)


def join_lake_rows(parts: Sequence[LakeRows]) -> LakeRows:
    """The combined rows of `parts`, which have no keys in common."""
    changed: dict[str, int] = {}
    for part in parts:
        changed |= part.changed
    unknown = frozenset[str]().union(*(part.unknown for part in parts))
    return LakeRows(
        [row for part in parts for row in part.rows], changed, unknown, next((p.why for p in parts if p.why), "")
    )


def _compute_net_rows(table: TableDef, changes: Sequence[RowVersion]) -> dict[str, Row]:
    """The rows after all changes that follow the last DDL, by key."""
    # If a table shares its target with wider ones, its rows do not have all columns.
    lacking: dict[str, str | None] = dict.fromkeys(column.name for column in table.row_columns)
    net = compute_net_changes(
        [change.to_event() for change in changes], table.find_identity(), derive_key_defaults(table)
    )
    return {change.key: {**lacking, **change.after} for change in net if change.after is not None}


def _read_mirror_rows(
    audit: Audit, paths: LakePaths, verified: VerifiedTable, keys: Sequence[AnyKey], ts: int, mirrored: bool
) -> list[Row]:
    """The mirror's rows, for keys that changed before a DDL of their table. Raises LostRange."""
    if not mirrored:
        raise LostRange("rows changed before a DDL of the table, and the lake keeps no mirrors")
    lake = VerifiedLakeTable(audit, paths, verified.table, ts)
    if lake.inexact not in ("", IN_PART):
        raise LostRange(lake.inexact)
    return lake.read_rows_by_key(keys)


def _build_key_filter(texts: Collection[str]) -> ds.Expression:
    if len(texts) <= _FEW:
        return match_keys(texts)
    terms = [ds.field(name).isin(sorted(texts)) for name in (Mutation.KEY, Mutation.NEW_KEY)]
    return functools.reduce(operator.or_, terms)


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
