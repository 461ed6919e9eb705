"""Loads tables of a source whose log is read: new ones, and those that are to be loaded again (decision 148).

The worker of the source calls this between its batches: a round reads ranges in a snapshot (`tableround`), then the log
is published up to that snapshot, and the round is committed. Changes of rows that were not read yet are not passed on
(`readrows`). So no row comes twice, and what was read stays at the position of the log, whatever happens in between.
Every step is durable together with what it publishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from pymysql import err

from binlake.common.sql import Dialect
from binlake.errors import BinlakeError, Permanent, SharedFailure, SourceUnavailable, Transient
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription
from binlake.mysqlbinlog.definitions.statements import split_ddl
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY
from binlake.mysqlbinlog.model import LoggedStatement, SourceTransaction
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.mysqlbinlog.tablerows.link import Link, Name
from binlake.mysqlbinlog.tablerows.ranges import KeyRanges
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.dump import SERVER_FACT
from binlake.pump_service.feeder.parts import Parts, ReadUpTo
from binlake.pump_service.feeder.publisher import Stopped
from binlake.pump_service.feeder.server import build_source_error
from binlake.pump_service.feeder.snapshot.addedtables import AddedTables
from binlake.pump_service.feeder.snapshot.catchup import find_exchanged_table
from binlake.pump_service.feeder.snapshot.control import Throttle, list_requests, read_paused
from binlake.pump_service.feeder.snapshot.opening import OneServer, open_session
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress, TableLoad
from binlake.pump_service.feeder.snapshot.reading import SnapshotChanged
from binlake.pump_service.feeder.snapshot.readrows import ReadRows
from binlake.pump_service.feeder.snapshot.selection import FollowedTables
from binlake.pump_service.feeder.snapshot.structures import require_target_collations
from binlake.pump_service.feeder.snapshot.tableround import (
    Published,
    Round,
    abandon_chunks,
    commit_definitions,
    commit_rows,
    describe_in_round,
    read_in_round,
    select_new_tables,
)
from binlake.rows.schema import TableDef

log = structlog.get_logger()

_POLL_S = 1.0
"""Seconds between looks at what operators ask for."""
_RETRY_S = 1.0
_REFUSED_RETRY_S = 30.0
_MOST_DOUBTS = 3
"""Times in a row that a table's definition at the source is not that of the log: then it is created again."""


@dataclass
class TableRounds:
    """The loads of tables beside the log of one source. `folder`: the feeder's; `families`: the kinds of servers that
    the rows go to; `watch`: called with the progress of each load. `trouble`: why a load cannot go on; "" = it can.

    For the thread of the source's worker.
    """

    followed: FollowedTables
    parts: Parts
    catalog: Catalog
    folder: Path
    watch: Callable[[SnapshotProgress], None]
    families: tuple[Dialect, ...] = ()
    trouble: str = ""

    def __post_init__(self) -> None:
        self._source = self.followed.present.source
        self._name = self._source.name
        self._state = AddedTables(self._name)
        self._round: Round | None = None
        self._rows: ReadRows | None = None
        self._link: Link | None = None
        self._progress: SnapshotProgress | None = None
        self._throttle = Throttle(self._source.snapshot.rows_per_second)
        self._look_at = self._next_at = 0.0
        self._doubts: dict[tuple[Name, int], int] = {}

    def start(self) -> None:
        """Call before the first batch, when the source has its position in the log."""
        self._state = AddedTables.read(self.parts.journal, self._name)
        if self.followed.former is None:
            self.parts.journal.set_facts(self.followed.present.build_facts())
        # Before anything is published: the log may have changes of these tables that stop the source.
        self._take_requests()
        if not self._state.is_empty:
            self._show({})

    def end(self) -> None:
        """Give up an open round, and close the session."""
        self._give_up()
        self._disconnect()

    @property
    def is_open(self) -> bool:
        """Whether a round waits for the log to reach its snapshot."""
        return self._round is not None

    def compute_wait_s(self, most: float) -> float:
        """Seconds until `step` may have something to do, at most `most`; `most` while a round is open."""
        return most if self._round is not None else min(max(self._next_at - time.monotonic(), 0.0), most)

    # -- rounds

    def step(self) -> None:
        """Begin the next round, if there is anything to load and none is open. Raises Stopped."""
        if self._round is not None or time.monotonic() < self._next_at:
            return
        self._next_at = 0.0
        try:
            self._take_requests()
            if self._needs_definitions or self._state.tables:
                self._open_round()
        except SnapshotChanged as error:
            self._doubt(error.table)
        except (BinlakeError, err.Error) as error:
            self._wait_after(build_source_error(error) if isinstance(error, err.Error) else error)
        else:
            self.trouble = ""
            if self._round is None:
                self._next_at = time.monotonic() + (self._throttle.find_wait_s() or _POLL_S)

    @property
    def _needs_definitions(self) -> bool:
        return bool(self._state.wanted) or self.followed.former is not None

    def _take_requests(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _POLL_S
        for request in list_requests(self.folder, self._name):
            self._state.want(request.tables, self.parts.publisher.fetch_ts(self._name))
            self._rows = None
            self.parts.journal.set_facts(self._state.build_facts())
            request.file.unlink(missing_ok=True)
            log.info("table_load_wanted", source=self._name, tables=[".".join(name) for name in request.tables])

    def _open_round(self) -> None:
        published = self._read_published()
        if self._needs_definitions:
            self._round = describe_in_round(self._source, published, self._select_described)
            return
        if self._is_paused() or self._throttle.find_wait_s():
            return
        definitions = self._find_definitions()
        tables = {name: load for name, load in self._state.tables.items() if name in definitions}
        try:
            self._round = read_in_round(
                self._source, published, tables, definitions, self.parts.version, self.parts.publisher,
                self._progress or self._show({}), self._throttle, self._require_to_go_on,
            )  # fmt: skip
        except BaseException:
            self._reset_claims()
            raise
        self._doubts.clear()

    def _select_described(self, databases: Sequence[DatabaseDescription]) -> set[Name]:
        """The tables whose rows are going to be read. Raises SourceRefused if a target cannot have one."""
        created, loaded = select_new_tables(databases, self._state, self.followed)
        chosen = [
            replace(database, tables=tuple(table for table in database.tables if (table.db, table.name) in created))
            for database in databases
        ]
        require_target_collations(self._source, chosen, self.families)
        return loaded

    def _is_paused(self) -> bool:
        is_paused = self._name in read_paused(self.folder)
        if self._progress is not None and is_paused != (self._progress.state == "paused"):
            self._progress.state = "paused"
            if not is_paused:
                self._progress.begin_reading()
        return is_paused

    def _read_published(self) -> Published:
        position = self.parts.journal.read_positions()[self._name].position
        return Published(position, self.parts.journal.read_fact(SERVER_FACT + self._name), self._state.rounds)

    def _find_definitions(self) -> dict[Name, TableDef]:
        found = {name: self.catalog.find_table(self._name, *name) for name in self._state.tables}
        return {name: table for name, table in found.items() if table is not None}

    def _require_to_go_on(self) -> None:
        if self.parts.stopped.is_set():
            raise Stopped

    def _doubt(self, name: Name) -> None:
        """Its definition at the source is not that of the log, which may still show why."""
        table = self.catalog.find_table(self._name, *name)
        key = name, hash(table.raw[CREATE_KEY]) if table is not None else 0
        self._doubts[key] = self._doubts.get(key, 0) + 1
        self._next_at = time.monotonic() + _RETRY_S
        if self._doubts[key] >= _MOST_DOUBTS:
            log.warning("table_load_begins_again", source=self._name, table=".".join(name), reason="other definition")
            self._doubts.clear()
            self._state.want([name], self._state.from_ts)
            self._rows = None
            self.parts.journal.set_facts(self._state.build_facts())

    def _wait_after(self, error: BinlakeError) -> None:
        if isinstance(error, SharedFailure):
            raise error
        if self.trouble != str(error):
            log.warning("table_load_waits", source=self._name, reason=str(error))
        self.trouble = str(error)
        wait_s = _REFUSED_RETRY_S if isinstance(error, Permanent) else _RETRY_S
        self._next_at = time.monotonic() + wait_s

    def _give_up(self) -> None:
        if self._round is not None:
            abandon_chunks(self.parts.publisher, self._name, self._round.chunks)
            self._round = None
            self._reset_claims()

    def _reset_claims(self) -> None:
        self._state.release_claims()
        if self._progress is not None:
            self._progress.resume({**self._state.done, **self._state.tables})

    # -- the log

    def count_before_round(self, transactions: Sequence[SourceTransaction]) -> int:
        """How many of `transactions` come before the open round; all of them, if none is open."""
        if self._round is None:
            return len(transactions)
        boundary = self._round.boundary
        try:
            return next((n for n, one in enumerate(transactions) if not boundary.contains(one)), len(transactions))
        except Transient as error:
            self._give_up()
            self._wait_after(error)
            return len(transactions)

    def finish_if_reached(self, read: ReadUpTo) -> None:
        """`finish` the open round, if everything up to its snapshot is published."""
        if self._round is not None and self._round.boundary.is_reached(read):
            self.finish()

    def finish(self) -> None:
        """Commit the open round: the log is published exactly up to its snapshot."""
        done = self._round
        assert done is not None
        self._round, self._rows = None, None
        if done.databases is not None:
            self._finish_definitions(done)
        else:
            self._finish_rows(done)

    def encode(
        self, transactions: Sequence[SourceTransaction], guard: Guard | None, on_rows: Callable[[int], None]
    ) -> list[bytes]:
        """The PrewriteValue of each of `transactions`, without changes of rows that are not read yet. Waits while the
        source cannot be asked about keys; raises Stopped, and what `encode_transactions` raises."""
        while True:
            rows = self._rows or self._build_rows()
            try:
                return rows.encode(transactions, 0, self._connect(), self.parts.version, guard, on_rows)
            except (SourceUnavailable, err.Error) as error:
                self._disconnect()
                self._wait_after(build_source_error(error) if isinstance(error, err.Error) else error)
            if self.parts.stopped.wait(_RETRY_S):
                raise Stopped

    @property
    def is_active(self) -> bool:
        """Whether rows of the log must pass `encode`."""
        return not self._state.is_empty

    def follow_statements(self, statements: Iterable[LoggedStatement]) -> Mapping[str, str]:
        """Adapt to DDL of the log that the catalog has followed; returns the facts that record it."""
        if self._state.is_empty:
            return {}
        flavor = self.catalog.look_up_flavor(self._name)
        singles = [single for statement in statements for single in split_ddl(statement, flavor)]
        pairs = [
            ((single.db, single.table), other)
            for single in singles
            if (other := find_exchanged_table(single)) is not None
        ]
        if not self._state.follow_statement(lambda table_id: self.catalog.find_by_id(self._name, table_id), pairs):
            return {}
        self._rows = None
        self._show({})
        return self._state.build_facts()

    def _build_rows(self) -> ReadRows:
        unread = {name: TableLoad(0, KeyRanges()) for name in self._state.wanted}
        self._rows = ReadRows(self._source, self.catalog, {**unread, **self._state.tables}, has_others=True)
        return self._rows

    def _connect(self) -> Link:
        if self._link is None:
            flavor = self.catalog.look_up_flavor(self._name)
            self._link = open_session(OneServer(self._source).connect, flavor)
        return self._link

    def _disconnect(self) -> None:
        link, self._link, self._rows = self._link, None, None
        if link is not None:
            link._force_close()  # type: ignore[attr-defined]

    def _finish_definitions(self, done: Round) -> None:
        wanted = set(self._state.wanted)
        try:
            commit_definitions(done, self._state, self.followed, self.catalog, self.parts)
        except Permanent as error:
            # The log goes on; what was wanted is tried again.
            self._wait_after(error)
            return
        log.info(
            "table_load_began", source=self._name, tables=[".".join(name) for name in self._state.tables],
        )  # fmt: skip
        if missing := wanted - self._state.tables.keys():
            log.warning("table_load_found_none", source=self._name, tables=sorted(map(".".join, missing)))
        if self._state.tables:
            self._show(done.guesses)

    def _finish_rows(self, done: Round) -> None:
        commit_rows(done, self._state, self.catalog, self.parts)
        progress = self._show(done.guesses)
        if self._state.is_empty:
            self._disconnect()
            progress.commit_ts = self.parts.journal.read_positions()[self._name].commit_ts
            progress.state = "done"
            log.info("table_load_done", source=self._name, tables=len(self._state.done), rows=self._count_rows())

    def _count_rows(self) -> int:
        return sum(load.rows for load in self._state.done.values())

    def _show(self, guesses: Mapping[Name, int]) -> SnapshotProgress:
        """The progress of the tables that there are now."""
        tables = {**self._state.done, **self._state.tables}
        if self._progress is None or self._progress.tables.keys() != tables.keys():
            self._progress = SnapshotProgress.of(guesses, tables, self._state.from_ts, self._state.began)
            self._progress.begin_reading()
            self.watch(self._progress)
        self._progress.resume(tables)
        return self._progress
