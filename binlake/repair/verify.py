"""Compares the target with the lake, or the source, at the target's checkpoint: all tables, in one snapshot."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import structlog

from binlake.audit.audit import Audit
from binlake.common.terminal import Tell, tell_nobody
from binlake.config import Replication
from binlake.config.servers import TargetSection
from binlake.errors import ConfigError
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.mirror.versions import IN_PART
from binlake.repair.chunks import ChunkPlan, Cuts
from binlake.repair.comparing import ExpectedRows, ReadPace, TableResult, VerifyState, compare_table
from binlake.repair.differences import Difference, Row
from binlake.repair.lakeside import VerifiedLakeTable, VerifiedTable, list_tables_at, read_cluster_id
from binlake.repair.serverside import (
    MOST_BUCKETS,
    Digest,
    SqlTable,
    TargetSnapshot,
    open_source_snapshot,
    open_target_snapshot,
)
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules
from binlake.target.claim.checkpoint import is_aside
from binlake.target.definitions.definitions import compare_definitions, expect_tables, read_definitions
from binlake.target.session.session import TargetSession

log = structlog.get_logger(__name__)

Against = Literal["lake", "source"]


@dataclass(frozen=True)
class VerifyOptions:
    """The options of a verify.

    `tables`: db.table at the target, empty = all; `sample`: share of the chunks (0 to 1]; `fresh`: ignore the progress
    of an unfinished run; `wait_s`: how long to wait for a consistent checkpoint; `max_differences`: how many to list;
    `source_stands_still`: the operator states that the source does not change; `lock_wait_s`: how long to wait for
    another verify of the lake.
    """

    against: Against = "lake"
    tables: tuple[str, ...] = ()
    chunk_rows: int = 20_000
    sample: float = 1.0
    rows_per_second: int = 0
    max_differences: int = 10_000
    wait_s: float = 0.0
    fresh: bool = False
    source_stands_still: bool = False
    lock_wait_s: float = 60.0


@dataclass
class Verification:
    """The result at checkpoint `commit_ts`. `differences`: the first ones; `listed_all`: whether these are all.

    `every`: one chunk in this many was read, starting at `turn` in this run. `read`: tables whose rows were read.
    """

    commit_ts: int
    against: Against
    every: int = 1
    turn: int = 0
    tables: list[TableResult] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    listed_all: bool = True
    seconds: float = 0.0
    read: list[VerifiedTable] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if no compared row and no definition differs."""
        return all(table.equal for table in self.tables)

    @property
    def whole(self) -> bool:
        """True if every table could be compared."""
        return not any(table.inexact for table in self.tables)

    @property
    def rows(self) -> int:
        """The number of the target's rows in compared chunks."""
        return sum(table.rows for table in self.tables)


def verify(
    replication: Replication,
    options: VerifyOptions | None = None,
    *,
    tell: Tell = tell_nobody,
    hook: Callable[[str], None] | None = None,
) -> Verification:
    """Compare the target. `tell` gets what is compared; `hook` is called with `chunk` after each chunk (for tests).

    Raises Transient (the target is inside a window, a DDL waits), LeaseHeld (another verify runs), LostRange (the lake
    does not have the checkpoint), ConfigError, TargetUnavailable, TargetRefused.
    """
    options = options or VerifyOptions()
    target = replication.require_sql_target()
    paths = LakePaths.of(replication)
    _require_comparable(replication, options)
    with hold_lake_lock(paths, "verify", wait_s=options.lock_wait_s):
        cluster_id = read_cluster_id(WindowLog(paths))
        with open_target_snapshot(target, cluster_id, replication.name, options.wait_s) as snapshot:
            return _Run(replication, paths, options, snapshot, tell, hook).run()


class _Run:
    def __init__(
        self,
        replication: Replication,
        paths: LakePaths,
        options: VerifyOptions,
        snapshot: TargetSnapshot,
        tell: Tell,
        hook: Callable[[str], None] | None,
    ) -> None:
        self._replication, self._paths, self._options, self._snapshot = replication, paths, options, snapshot
        self._target, self._ts = replication.require_sql_target(), snapshot.checkpoint.commit_ts
        self._tell, self._hook = tell, hook
        self._place, self._chunks = "", 0
        self._pace = ReadPace(options.rows_per_second)
        self._audit = Audit(paths, Rules.of(replication))
        self._state = VerifyState(paths, self._ts, options.against)
        every = max(1, round(1 / options.sample))
        self._done = Verification(self._ts, options.against, every, _compute_next_turn(paths, options.against, every))

    def run(self) -> Verification:
        began = time.monotonic()
        if self._options.fresh:
            self._state.clear()
            self._state = VerifyState(self._paths, self._ts, self._options.against)
        if self._options.against == "lake":
            self._audit.clip_range(-1, self._ts)
        tables = list_tables_at(self._replication, self._paths, self._ts, self._options.tables)
        with self._open_source() as source:
            for number, verified in enumerate(tables, 1):
                self._place = f"table {number} of {len(tables)}, {'.'.join(verified.name)}"
                self._chunks = 0
                self._tell(self._place)
                self._verify_table(verified, source)
        self._state.clear()
        self._done.seconds = time.monotonic() - began
        return self._done

    def _verify_table(self, verified: VerifiedTable, source: TargetSession | None) -> None:
        began = time.monotonic()
        result = TableResult(*verified.name)
        self._done.tables.append(result)
        if not self._options.tables and is_aside(self._snapshot.aside, verified.name):
            since = self._snapshot.aside[fold_pair(verified.name)].since
            result.inexact = f"it is set aside since {since}: `binlake table back` compares and repairs it"
            return
        result.structure = self._compare_structure(verified)
        lake = VerifiedLakeTable(self._audit, self._paths, verified.table, self._ts) if source is None else None
        if lake is not None:
            result.inexact = lake.inexact or (IN_PART if verified.begun_before else "")
        if not result.inexact and not any(_prevents_reading(text) for text in result.structure):
            plan = self._cut_table(verified, source)
            expected_rows = (
                _ChunkedLakeTable(lake, plan) if lake is not None else self._build_source_table(verified, plan, source)
            )
            self._add_differences(self._compare(verified, plan, expected_rows, result))
            if result.compared:
                self._done.read.append(verified)
        result.seconds = time.monotonic() - began
        log.info(
            "table_verified", table=".".join(verified.name), equal=result.equal, rows=result.rows, chunks=result.chunks
        )

    def _cut_table(self, verified: VerifiedTable, source: TargetSession | None) -> ChunkPlan:
        """The chunks of the table: those of the unfinished run that this one continues, or new ones."""
        cuts = self._state.find_cuts(verified.name)
        if cuts is None:
            cuts = SqlTable(self._snapshot.session, self._build_plan(verified, Cuts()), [verified.name]).compute_cuts(
                self._options.chunk_rows
            )
            if source is not None and len(verified.sources) > 1:
                cuts = Cuts(buckets=min(MOST_BUCKETS, cuts.count))
            self._state.begin(verified.name, cuts)
        return self._build_plan(verified, cuts)

    def _compare(
        self, verified: VerifiedTable, plan: ChunkPlan, expected_rows: ExpectedRows, result: TableResult
    ) -> list[Difference]:
        result.chunks = plan.cuts.count
        target = SqlTable(self._snapshot.session, plan, [verified.name])
        numbers, most = self._choose_chunks(verified, result.chunks), self._options.max_differences
        return compare_table(target, expected_rows, numbers, result, self._state, self._on_chunk, most)

    def _build_source_table(self, verified: VerifiedTable, plan: ChunkPlan, source: TargetSession | None) -> SqlTable:
        assert source is not None
        return SqlTable(source, plan, verified.sources)

    def _build_plan(self, verified: VerifiedTable, cuts: Cuts) -> ChunkPlan:
        return ChunkPlan(verified.expected, self._target.db_type, cuts)

    def _on_chunk(self, rows: int) -> None:
        if self._hook is not None:
            self._hook("chunk")
        self._chunks += 1
        self._tell(f"{self._place}, chunk {self._chunks} of {self._done.tables[-1].chunks}")
        self._snapshot.require_no_waiting_ddl()
        self._pace.read(rows)

    def _compare_structure(self, verified: VerifiedTable) -> list[str]:
        expected = expect_tables([verified.expected], self._target.db_type)
        actual = read_definitions(self._snapshot.session, expected.names, self._target.db_type)
        # Differences that `target.tables` accepts are ignored.
        return compare_definitions(expected, actual, target=self._target)

    def _choose_chunks(self, verified: VerifiedTable, count: int) -> list[int]:
        every = self._done.every
        # Tables with one chunk are distributed over the runs too.
        first = (self._done.turn + zlib.crc32(".".join(verified.name).encode())) % every
        return [number for number in range(count) if number % every == first]

    def _add_differences(self, differences: Sequence[Difference]) -> None:
        room = self._options.max_differences - len(self._done.differences)
        self._done.differences += differences[:room]
        self._done.listed_all &= len(differences) <= room

    @contextmanager
    def _open_source(self) -> Iterator[TargetSession | None]:
        if self._options.against == "lake":
            yield None
            return
        with open_source_snapshot(
            require_source_server(self._replication), self._ts, stands_still=self._options.source_stands_still
        ) as session:
            yield session


class _ChunkedLakeTable:
    """A LakeTable split by a plan: the ExpectedRows of a comparison with the lake."""

    def __init__(self, lake: VerifiedLakeTable, plan: ChunkPlan) -> None:
        self._lake, self._plan = lake, plan

    def compute_digests(self, numbers: Sequence[int]) -> Iterator[tuple[int, Digest]]:
        return self._lake.compute_digests(self._plan, numbers)

    def compute_part_digests(self, wanted: Mapping[int, int]) -> dict[int, dict[int, Digest]]:
        return self._lake.compute_part_digests(self._plan, wanted)

    def read_rows(self, wanted: Mapping[int, tuple[int, Sequence[int]]]) -> list[Row]:
        return self._lake.read_rows(self._plan, wanted)


def require_source_server(replication: Replication) -> TargetSection:
    """`[source.sql]` as a server to connect to. Raises ConfigError if it is not configured."""
    sql = replication.source.sql
    if sql is None:
        raise ConfigError("the source does not accept SQL", hint="add a section [source.sql]")
    security = replication.source.sql_security
    place = {"host": sql.host, "port": sql.port, "user": sql.user, "password": sql.password}
    return TargetSection(**place, db_type="mysql", security=security)


def _prevents_reading(difference: str) -> bool:
    """Whether a difference prevents reading rows: the table or one of its columns is missing."""
    return re.search(r": (the table is missing|column .* is missing|it is a )", difference) is not None


def _require_comparable(replication: Replication, options: VerifyOptions) -> None:
    if not 0 < options.sample <= 1 or options.chunk_rows < 1:
        raise ConfigError("the sample must be above 0 and at most 1, and a chunk must have at least one row")
    if options.against == "lake":
        if not replication.mirror.enabled:
            raise ConfigError(
                "the lake keeps no mirrors of the tables",
                hint="set mirror.enabled, or compare with the source (--against source)",
            )
        return
    rows = list_rules_that_change_rows(replication)
    if rows:
        raise ConfigError(
            f"with {rows[0]} the target is not a copy of the source",
            hint="compare with the lake (--against lake), which has only rows that pass the rules",
        )


def list_rules_that_change_rows(replication: Replication) -> list[str]:
    """The configured rules that make the target's rows differ from the source's."""
    rows = ["filters"] if replication.filters else []
    rows += ["expression-filter"] if replication.expression_filter else []
    rows += ["filter.ignore-txn-commit-ts"] if replication.filter.ignore_txn_commit_ts else []
    extracted = any(rule.extract_table or rule.extract_schema or rule.extract_source for rule in replication.routes)
    return rows + (["routes with extract columns"] if extracted else [])


def _compute_next_turn(paths: LakePaths, against: Against, every: int) -> int:
    """The number of this run's turn among `every`: the one after the last finished run's."""
    if every == 1:
        return 0
    details = [json.loads(event["detail"]) for event in WindowLog(paths).read_events(stage="verify")]
    return sum((detail.get("every"), detail.get("against")) == (every, against) for detail in details) % every
