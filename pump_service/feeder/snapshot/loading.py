"""The full load of a source at its first start: its definitions, then all its rows, then its log from that position on.

The definitions are published first, as DDL, so that mirror and target create the tables. The rows are prewritten as
they are read, and each chunk is committed (`chunkwriter`), so that windows carry it while others are read. Chunks
survive an interrupted attempt (`loadstate`): the next one takes a new snapshot, commits how the rows that were already
read have changed in the log up to it (`catchup`), and then reads the rest. So the visible rows are at each commit_ts a
part of what the source had at one position. The log is read from the position of the last snapshot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import structlog
from pymysql import err

from binlake.common.sql import Dialect
from binlake.errors import BinlakeError, Permanent
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription
from binlake.mysqlbinlog.model import BinlogPosition
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.dump import SERVER_FACT, read_identity
from binlake.pump_service.feeder.journal import Batch, FeederJournal, ReadPosition
from binlake.pump_service.feeder.publisher import SourcePublisher, Stopped, UncommittedBatches
from binlake.pump_service.feeder.server import build_source_error, derive_flavor, read_log_end
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.catchup import CannotCombineSnapshots, CatchUp, check_next_snapshot
from binlake.pump_service.feeder.snapshot.chunkwriter import ChunkWriter
from binlake.pump_service.feeder.snapshot.control import Throttle
from binlake.pump_service.feeder.snapshot.loadstate import (
    LoadState,
    SnapshotPosition,
    build_load_facts,
    read_load_record,
)
from binlake.pump_service.feeder.snapshot.opening import (
    OneServer,
    build_definitions,
    build_id_prefix,
    open_described_snapshot,
    open_session,
)
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.snapshot.reading import SnapshotChanged, SnapshotReader, SnapshotTable
from binlake.pump_service.feeder.snapshot.structures import estimate_rows, require_target_collations

log = structlog.get_logger()

_RETRY_S = 1.0  # before a snapshot that DDL invalidated is taken again
_PAUSE_POLL_S = 1.0


def needs_load(journal: FeederJournal, source: SourceFile) -> bool:
    """Whether `source` must be loaded: it was never read, or its load is unfinished."""
    if source.name in journal.read_positions():
        return read_load_record(journal, source.name).get("state") == "loading"
    return source.start.mode == "snapshot"


class _Paused(Exception):
    """The load is to pause: its snapshot ends."""


@dataclass
class SnapshotLoader:
    """Loads `source`, whose log is read as replica `server_id`; `watch` is called with the progress of each attempt at
    its start; `families`: the kinds of servers that the rows go to, as far as known; `is_paused`: whether the load
    is to read nothing for now."""

    source: SourceFile
    journal: FeederJournal
    publisher: SourcePublisher
    catalog: Catalog
    stopped: threading.Event
    watch: Callable[[SnapshotProgress], None]
    server_id: int = 0
    families: tuple[Dialect, ...] = ()
    is_paused: Callable[[], bool] = lambda: False
    _look_at: float = 0.0

    def load(self) -> None:
        """Returns when all rows are committed and the journal has the position after them.

        Raises SourceUnavailable, Transient, Stopped: called again, it continues; SourceRefused, SchemaError: it starts
        over, and drops the tables that already have rows.
        """
        while True:
            load = LoadState(self.journal, self.source.name)
            try:
                self._continue(load)
            except _Paused:
                self._wait_while_paused(LoadState(self.journal, self.source.name))
            except SnapshotChanged as error:
                load.read_again([error.table])
                self._wait_before_retry(error)
            except CannotCombineSnapshots as error:
                load.forget()
                self._wait_before_retry(error)
            except (Permanent, err.Error) as error:
                known = build_source_error(error) if isinstance(error, err.Error) else error
                if isinstance(known, Permanent):
                    load.forget()
                raise known from error
            else:
                return

    def _wait_before_retry(self, error: BinlakeError) -> None:
        log.warning("snapshot_retried", source=self.source.name, reason=str(error))
        if self.stopped.wait(_RETRY_S):
            raise Stopped from error

    def _wait_while_paused(self, load: LoadState) -> None:
        progress = self._start_progress({}, load)
        progress.state = "paused"
        log.info("load_paused", source=self.source.name, rows=sum(table.rows for table in load.tables.values()))
        while self.is_paused():
            if self.stopped.wait(_PAUSE_POLL_S):
                raise Stopped
        log.info("load_resumed", source=self.source.name)

    def _continue(self, load: LoadState) -> None:
        if self.is_paused():
            raise _Paused
        if load.is_read:
            # Read by an earlier process; which names may have moved is no longer known.
            progress, maybe_moved = self._start_progress({}, load), set(load.tables)
        else:
            progress, maybe_moved = self._read_rest(load)
        with self._order_batches(load, progress, maybe_moved) as uncommitted:
            self._commit(uncommitted, load, progress)

    def _start_progress(self, guesses: Mapping[Name, int], load: LoadState) -> SnapshotProgress:
        progress = SnapshotProgress.of(guesses, load.tables, load.from_ts, load.began)
        progress.resume(load.tables)
        self.watch(progress)
        return progress

    def _read_rest(self, load: LoadState) -> tuple[SnapshotProgress, set[Name]]:
        """Read the rest in a new snapshot; also returns the tables whose names may have moved before they were read."""
        snapshot, databases, moves = open_described_snapshot(self.source)
        with snapshot:
            require_target_collations(self.source, databases, self.families)
            began_ms = time.time_ns() // 1_000_000
            identity = read_identity(snapshot.sessions[0], snapshot.flavor)
            snapshot_position = SnapshotPosition(snapshot.position, identity.uuid)
            if load.has_rows:
                check_next_snapshot(snapshot.sessions[0], snapshot.flavor, load.snapshots, snapshot_position, identity)
            tables, version = self._publish_definitions(snapshot.position, databases, began_ms, load, snapshot_position)
            progress = self._start_progress(estimate_rows(snapshot.sessions[0], load.tables), load)
            left = [table for table in tables if not table.ranges.is_complete]
            log.info(
                "snapshot_started", source=self.source.name, tables=len(tables), gtids=snapshot.position.gtids,
                number=len(load.snapshots) - 1, tables_left=len(left),
            )  # fmt: skip
            if load.has_rows and not load.has_one_position:
                self._catch_up(load, progress)
            rows = self.source.snapshot.chunk_rows
            keeper = ChunkWriter(self.publisher, self.source.name, load, began_ms)

            def wait() -> None:
                self._require_to_go_on()
                keeper.flush_if_due()

            reader = SnapshotReader(
                snapshot,
                left,
                version,
                progress,
                moves=moves,
                chunk_rows=rows,
                most_rows=rows,
                invalid_text=self.source.invalid_text,
                form=self.source.snapshot.form,
                throttle=Throttle(self.source.snapshot.rows_per_second),
                idle=wait,
            )
            progress.begin_reading()
            try:
                with closing(reader.read_values()) as values:
                    for value in values:
                        self._require_to_go_on()
                        keeper.add(value)
                keeper.flush()
            finally:
                keeper.abandon()
        return progress, reader.maybe_moved

    def _require_to_go_on(self) -> None:
        if self.stopped.is_set():
            raise Stopped
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _PAUSE_POLL_S
            if self.is_paused():
                raise _Paused

    def _catch_up(self, load: LoadState, progress: SnapshotProgress) -> None:
        """Commit what the log has changed, up to the last snapshot, in rows that were read before it."""
        name, position = self.source.name, load.snapshots[-1].position
        with self._order_batches(load, progress, set()) as uncommitted:
            facts, chunks = load.join_snapshots()
            if uncommitted.batches:
                self.publisher.commit(uncommitted, position, facts, is_load=True, chunks=chunks)
            else:
                self.journal.commit([], {}, facts=facts, loaded=name, chunks=chunks)

    @contextmanager
    def _order_batches(
        self, load: LoadState, progress: SnapshotProgress, maybe_moved: set[Name]
    ) -> Iterator[UncommittedBatches]:
        """The load's open batches in commit order: the rows of each snapshot, then their changes in the log, which are
        rolled back if the body of the `with` does not commit."""
        batches, of_log = load.read_batches(), UncommittedBatches(self.source.name)
        changes: dict[int, list[Batch]] = {number: [] for number in batches}
        try:
            if len(load.snapshots) > 1 or maybe_moved:
                progress.state = "catching up"
                flavor = self.catalog.look_up_flavor(self.source.name)
                end = self._read_log_end(load.snapshots[-1]) if maybe_moved else None
                catch_up = CatchUp(
                    self.source, self.server_id, flavor, load.snapshots, load.tables, self.catalog,
                    lambda: open_session(OneServer(self.source).connect, flavor), self.stopped, maybe_moved, end,
                    progress.report_trouble,
                )  # fmt: skip
                for number, outgoing in catch_up.read():
                    changes[number] += self.publisher.prewrite(of_log, outgoing)
            ordered = [batch for number in sorted(batches) for batch in (*batches[number], *changes[number])]
            yield UncommittedBatches(self.source.name, ordered)
        except BaseException:
            self.publisher.abandon(of_log)
            raise

    def _read_log_end(self, snapshot: SnapshotPosition) -> BinlogPosition:
        """Where the log of the snapshot's server ends; raises CannotCombineSnapshots if another server answers."""
        with closing(OneServer(self.source).connect()) as link:
            server = read_identity(link, derive_flavor(link)).uuid
            if server != snapshot.server:
                raise CannotCombineSnapshots(
                    f"names may have moved at server {snapshot.server}, and {server} may not know of it"
                )
            return read_log_end(link)

    def _publish_definitions(
        self,
        position: BinlogPosition,
        databases: Sequence[DatabaseDescription],
        began_ms: int,
        load: LoadState,
        snapshot_position: SnapshotPosition,
    ) -> tuple[list[SnapshotTable], int]:
        """Publish the definitions; returns the tables of the load as the catalog has them, and the SchemaVersion."""
        name, catalog = self.source.name, self.catalog
        from_ts = load.from_ts or self.publisher.fetch_ts(name)
        with catalog.lock:
            changes = catalog.adopt(name, databases, load.outdated)
            texts = {(table.db, table.name): table.create for database in databases for table in database.tables}
            definitions = {
                table: definition
                for table in texts
                if self.source.snapshot.loads(*table) and (definition := catalog.find_table(name, *table)) is not None
            }
            load.fit_tables({table: definition.id for table, definition in definitions.items()})
            facts = load.start_snapshot(snapshot_position, from_ts)
            if changes:
                uncommitted = UncommittedBatches(name)
                self.publisher.prewrite(uncommitted, build_definitions(changes, build_id_prefix(position), began_ms))
                self.publisher.commit(uncommitted, position, facts)
            else:
                # Its last commit_ts stays: the registry recognises the newest folder by it.
                known = self.journal.read_positions().get(name) or ReadPosition(position)
                self.journal.commit([], {name: replace(known, position=position)}, facts=facts)
            tables = [
                SnapshotTable(table, definition, texts[table], load.tables[table].ranges)
                for table, definition in definitions.items()
            ]
            return tables, catalog.version

    def _commit(self, uncommitted: UncommittedBatches, load: LoadState, progress: SnapshotProgress) -> None:
        progress.state = "committing"
        name, position = self.source.name, load.snapshots[-1].position
        state = progress.to_json()
        done = {key: state[key] for key in ("from_ts", "rows", "tables", "seconds")}
        record = {"state": "done", **done, "tables_done": state["tables"]}
        facts = build_load_facts(name, record) | {SERVER_FACT + name: load.snapshots[-1].server}
        commit_ts = 0
        if uncommitted.batches:
            commit_ts = self.publisher.commit(uncommitted, position, facts, is_load=True)
        else:
            snapshot_position = self.journal.read_positions()[name]
            self.journal.commit([], {name: snapshot_position}, facts=facts, loaded=name)
            commit_ts = snapshot_position.commit_ts
        self.journal.set_facts(build_load_facts(name, {**record, "commit_ts": str(commit_ts)}))
        progress.commit_ts, progress.state = commit_ts, "done"
        log.info(
            "snapshot_done", source=name, commit_ts=str(commit_ts), snapshots=len(load.snapshots),
            **{k: v for k, v in record.items() if k != "state"},
        )  # fmt: skip
