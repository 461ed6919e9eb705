"""The side of a server: a consistent snapshot, and each table in it as checksums and as rows of canonical texts.

The checkpoint is read in the same transaction. A target in the middle of a window (`consistent` false) cannot be
compared: Binlake waits or refuses (DESIGN 3.8). The transaction writes nothing, and ends if a DDL waits for it. The
server computes one number per chunk, and sends rows only if checksums differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from binlake.config.servers import TargetSection
from binlake.errors import ConfigError, Transient
from binlake.repair.chunks import AnyKey, ChunkPlan, Cuts, Key, KeyOrder, render_after_key
from binlake.repair.differences import Row
from binlake.statements.conditions import TERMS_A_STATEMENT, format_image_condition, format_keys_condition
from binlake.statements.literal import (
    build_text_reader,
    format_match,
    quote_name,
    quote_qualified_name,
    render_column_sql,
)
from binlake.target.claim.checkpoint import AsideTables, Checkpoint, CheckpointTable, is_settled, read_aside
from binlake.target.claim.progress import read_progress
from binlake.target.session.session import TargetSession

_ASK_EVERY_S = 0.5
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_WAITING = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock%'"
MOST_BUCKETS = 16
"""Maximum number of chunks for a table whose key has no known order, as it is read once per chunk."""
_MODULUS = 1 << 64
_KEYS_A_QUERY = 1000


@dataclass(frozen=True)
class TargetSnapshot:
    """A session in a transaction, and the checkpoint in it. Tables set `aside` are not at that checkpoint."""

    session: TargetSession
    checkpoint: Checkpoint
    aside: AsideTables = field(default_factory=dict)

    def require_no_waiting_ddl(self) -> None:
        """Raises Transient when a DDL waits for a table that this transaction has read."""
        if int(self.session.fetch_rows(_WAITING)[0][0]):
            raise Transient(
                "a DDL waits for a table that is being compared: the comparison stops to let it run",
                hint="run it again: chunks found equal at the same checkpoint are not read again",
            )


@contextmanager
def open_target_snapshot(
    target: TargetSection, cluster_id: int, replication: str, wait_s: float = 0.0
) -> Iterator[TargetSnapshot]:
    """A snapshot of the target between two windows of `replication`. Waits for it up to `wait_s` seconds.

    Raises ConfigError without a checkpoint, Transient inside a window, TargetUnavailable.
    """
    with closing(TargetSession(target)) as session:
        session.execute(_ISOLATION)
        yield _wait_for_checkpoint(session, target, cluster_id, replication, time.monotonic() + wait_s)


def _wait_for_checkpoint(
    session: TargetSession, target: TargetSection, cluster_id: int, replication: str, deadline: float
) -> TargetSnapshot:
    schema = target.checkpoint_schema
    table = CheckpointTable(target.checkpoint_schema, cluster_id)
    while True:
        session.execute(_SNAPSHOT)
        checkpoint = table.read(session)
        if checkpoint is None:
            raise ConfigError(
                "the target has no checkpoint: nothing was applied to it", where={"target": session.place}
            )
        aside = read_aside(session, schema, cluster_id)
        # A drainer's target has no progress table to read.
        if is_settled(checkpoint, read_progress(session, schema, replication) if aside else None, aside):
            return TargetSnapshot(session, checkpoint, aside)
        session.execute("ROLLBACK")
        if time.monotonic() >= deadline:
            raise build_not_consistent_error(checkpoint)
        time.sleep(_ASK_EVERY_S)


def build_not_consistent_error(checkpoint: Checkpoint) -> Transient:
    """The error for a target in the middle of a window."""
    return Transient(
        "the target is inside a window (consistent = false): it does not equal the source at any commit_ts",
        where={"commit_ts": checkpoint.commit_ts},
        hint="wait for the window to end (--wait SECONDS), or finish it: `binlake stage finalize`",
    )


@contextmanager
def open_source_snapshot(source: TargetSection, ts: int, *, stands_still: bool) -> Iterator[TargetSession]:
    """A session that reads the source at commit_ts `ts`: TiDB by `tidb_snapshot`, other servers in their present state.

    Raises ConfigError for a server without such snapshots, unless the operator states that it `stands_still` at `ts`.
    """
    with closing(TargetSession(source)) as session:
        if "tidb" in str(session.fetch_rows("SELECT VERSION()")[0][0]).lower():
            session.execute(f"SET SESSION tidb_snapshot = '{ts}'")
        elif stands_still:
            session.execute(_ISOLATION)
            session.execute(_SNAPSHOT)
        else:
            raise ConfigError(
                "this source cannot be read as of a commit_ts, only in its present state",
                where={"source": session.place, "commit_ts": ts},
                hint="stop its writers, let the target reach its last commit, then use --source-stands-still",
            )
        yield session


class Digest(NamedTuple):
    """Number of rows, and the sum of their hashes modulo 2^64."""

    rows: int
    sum: int


class SqlTable:
    """The table `plan.table` at a server, where it is stored in the tables `names` (several are read as one).

    `lock`: rows that are read by key stay locked until the transaction ends.
    """

    def __init__(
        self, session: TargetSession, plan: ChunkPlan, names: Sequence[tuple[str, str]], *, lock: bool = False
    ) -> None:
        self.plan = plan
        self._session = session
        self._names = [quote_qualified_name(*name) for name in names]
        self._columns = plan.table.row_columns
        self._lock = " FOR UPDATE" if lock else ""

    def compute_cuts(self, chunk_rows: int) -> Cuts:
        """Split into chunks of about `chunk_rows` current rows. Reads the index, or counts rows."""
        table = self.plan.table
        if KeyOrder.of(table, self.plan.dialect) is None or len(self._names) > 1:
            return Cuts(buckets=min(MOST_BUCKETS, self._count_rows() // chunk_rows + 1))
        return Cuts(tuple(self._read_uppers(chunk_rows)))

    def compute_digests(self, numbers: Sequence[int]) -> Iterator[tuple[int, Digest]]:
        """The digest of each chunk, computed when it is iterated."""
        for number in numbers:
            yield number, self.compute_digest(number)

    def compute_digest(self, number: int) -> Digest:
        """The digest of chunk `number`."""
        hashed = self._render_union(f"{self.plan.row_sql} AS h", self.plan.render_condition(number))
        return _build_digest(*self._session.fetch_rows(f"SELECT COUNT(*), SUM(h) FROM ({hashed}) hashed")[0])

    def compute_part_digests(self, wanted: Mapping[int, int]) -> dict[int, dict[int, Digest]]:
        """By chunk of `wanted` (number -> parts), the digest of each part that has rows."""
        digests = {}
        for number, parts in wanted.items():
            columns = f"{self.plan.render_part_sql(parts)} AS part, {self.plan.row_sql} AS h"
            hashed = self._render_union(columns, self.plan.render_condition(number))
            rows = self._session.fetch_rows(f"SELECT part, COUNT(*), SUM(h) FROM ({hashed}) hashed GROUP BY part")
            digests[number] = {int(part): _build_digest(*rest) for part, *rest in rows}
        return digests

    def read_rows(self, wanted: Mapping[int, tuple[int, Sequence[int]]]) -> list[Row]:
        """The rows of some parts. `wanted`: chunk number -> (number of parts, the wanted parts)."""
        rows: list[Row] = []
        for number, (parts, chosen) in wanted.items():
            inside = f"{self.plan.render_part_sql(parts)} IN ({','.join(map(str, chosen))})"
            rows += self._read(f"{self.plan.render_condition(number)} AND {inside}")
        return rows

    def read_rows_by_key(self, keys: Sequence[AnyKey]) -> list[Row]:
        """The rows with one of `keys`. In a table without a key, whose keys are whole rows, all copies."""
        if self.plan.table.find_identity().kind == "row":
            return [row for key in keys for row in self._read(self._render_image_condition(key), self._lock)]
        rows: list[Row] = []
        names = [quote_name(column.name) for column in self.plan.key]
        most = _KEYS_A_QUERY if len(names) == 1 else TERMS_A_STATEMENT
        for start in range(0, len(keys), most):
            literals = [
                [format_match(text, column) for column, text in zip(self.plan.key, key, strict=True)]
                for key in keys[start : start + most]
            ]
            rows += self._read(format_keys_condition(names, literals), self._lock)
        return rows

    def _read(self, where: str, tail: str = "") -> list[Row]:
        shown = ",".join(render_column_sql(column) for column in self._columns)
        rows = self._session.fetch_rows(self._render_union(shown, where) + tail)
        readers = [(column.name, build_text_reader(column)) for column in self._columns]
        return [{name: read(value) for (name, read), value in zip(readers, row, strict=True)} for row in rows]

    def _render_union(self, columns: str, where: str) -> str:
        return " UNION ALL ".join(f"SELECT {columns} FROM {name} WHERE {where}" for name in self._names)

    def _read_uppers(self, chunk_rows: int) -> Iterator[Key]:
        key = self.plan.key
        shown, names = ",".join(map(render_column_sql, key)), ",".join(quote_name(column.name) for column in key)
        where, readers = "TRUE", [build_text_reader(column) for column in key]
        while True:
            tail = f" ORDER BY {names} LIMIT 1 OFFSET {chunk_rows - 1}"
            rows = self._session.fetch_rows(f"SELECT {shown} FROM {self._names[0]} WHERE {where}{tail}")
            if not rows:
                return
            upper = tuple(str(read(value)) for read, value in zip(readers, rows[0], strict=True))
            yield upper
            where = render_after_key(key, upper)

    def _count_rows(self) -> int:
        return sum(int(self._session.fetch_rows(f"SELECT COUNT(*) FROM {name}")[0][0]) for name in self._names)

    def _render_image_condition(self, key: AnyKey) -> str:
        pairs = zip(key, self.plan.key, strict=True)
        return " AND ".join(format_image_condition(text, column, self.plan.dialect) for text, column in pairs)


def _build_digest(rows: Any, total: Any) -> Digest:
    return Digest(int(rows), int(total or 0) % _MODULUS)
