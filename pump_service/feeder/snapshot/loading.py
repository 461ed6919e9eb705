"""The full load of a source at its first start: its definitions, then all its rows, and then its log from their place.

The definitions are published first, as DDL, so that mirror and target make the tables. The rows are prewritten as they
are read and stay open: one durable step commits all of them together with the position from which the log is read.
Chunks that are prewritten are kept over whatever ends an attempt (`kept`): the next one reads the rest in a new
snapshot, and what the log changed in between of what was read (`catchup`). Nothing has seen a row before that step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import structlog
from pymysql import err
from pymysql.constants import ER

from binlake.errors import BinlakeError, Permanent, SourceRefused, SourceUnavailable, Transient
from binlake.mysqlbinlog.definitions.changes import SchemaChange
from binlake.mysqlbinlog.definitions.described import DatabaseDescription
from binlake.mysqlbinlog.model import Position
from binlake.mysqlbinlog.tablerows.link import Name
from pump_service.feeder.catalog import Catalog
from pump_service.feeder.journal import Batch, Journal, Place
from pump_service.feeder.publisher import Ddl, Held, Outgoing, Publisher, Stopped
from pump_service.feeder.server import flavor_of, log_end
from pump_service.feeder.settings import SourceFile
from pump_service.feeder.snapshot.catchup import CannotJoin, CatchUp, check_next
from pump_service.feeder.snapshot.keeping import ChunkKeeper
from pump_service.feeder.snapshot.kept import KeptLoad, SnapshotPlace, load_record, record_facts
from pump_service.feeder.snapshot.oneserver import OneServer
from pump_service.feeder.snapshot.opening import Snapshot, open_session, open_snapshot
from pump_service.feeder.snapshot.progress import Progress
from pump_service.feeder.snapshot.reading import SnapshotChanged, SnapshotReader, SourceTable
from pump_service.feeder.snapshot.structures import count_moves, describe_source, guess_rows
from pump_service.feeder.startplace import SERVER, read_identity

log = structlog.get_logger()

_TRIES = 10  # openings between which DDL may run
_AGAIN_S = 1.0  # before a snapshot that DDL ended is taken again
_PRIVILEGES = frozenset(
    {
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
    }
)


def needs_load(journal: Journal, source: SourceFile) -> bool:
    """Whether `source` is to be loaded: it was never read, or its load did not end."""
    if source.name in journal.places():
        return load_record(journal, source.name).get("state") == "loading"
    return source.start.mode == "snapshot"


@dataclass
class Loader:
    """Loads `source`, whose log is read as replica `server_id`; `watch` is given the progress of each attempt when it
    begins."""

    source: SourceFile
    journal: Journal
    publisher: Publisher
    catalog: Catalog
    stopped: threading.Event
    watch: Callable[[Progress], None]
    server_id: int = 0

    def load(self) -> None:
        """Return when all rows are committed, and the journal has the position behind them.

        Raises SourceUnavailable, Transient, Stopped: called again, it goes on; SourceRefused, SchemaError: it begins
        again. Whatever it raises, nothing of the load is seen.
        """
        while True:
            kept = KeptLoad(self.journal, self.source.name)
            try:
                self._go_on(kept)
            except SnapshotChanged as error:
                kept.read_again([error.table])
                self._again(error)
            except CannotJoin as error:
                kept.forget()
                self._again(error)
            except (Permanent, err.Error) as error:
                known = _source_error(error) if isinstance(error, err.Error) else error
                if isinstance(known, Permanent):
                    kept.forget()
                raise known from error
            else:
                return

    def _again(self, error: BinlakeError) -> None:
        log.warning("snapshot_again", source=self.source.name, reason=str(error))
        if self.stopped.wait(_AGAIN_S):
            raise Stopped from error

    def _go_on(self, kept: KeptLoad) -> None:
        if kept.is_read:
            # By a process that is gone, and with it what it knew of names that moved.
            progress, doubtful = self._watched({}, kept), set(kept.tables)
        else:
            progress, doubtful = self._read_rest(kept)
        held = Held(self.source.name)
        try:
            self._join(kept, held, progress, doubtful)
            self._commit(held, kept, progress)
        except BaseException:
            self.publisher.abandon(held)
            raise

    def _watched(self, guesses: Mapping[Name, int], kept: KeptLoad) -> Progress:
        progress = Progress.of(guesses, kept.tables, kept.from_ts, kept.began)
        progress.resume(kept.tables)
        self.watch(progress)
        return progress

    def _read_rest(self, kept: KeptLoad) -> tuple[Progress, set[Name]]:
        """Read in a new snapshot what is not read yet; also the tables whose names may have moved before they were."""
        snapshot, databases, moves = self._open()
        with snapshot:
            began_ms = time.time_ns() // 1_000_000
            identity = read_identity(snapshot.sessions[0], snapshot.flavor)
            place = SnapshotPlace(snapshot.position, identity.uuid)
            if kept.has_rows:
                check_next(snapshot.sessions[0], snapshot.flavor, kept.snapshots, place, identity)
            tables, version = self._publish_definitions(snapshot.position, databases, began_ms, kept, place)
            progress = self._watched(guess_rows(snapshot.sessions[0], kept.tables), kept)
            left = [table for table in tables if not table.ranges.is_complete]
            log.info(
                "snapshot_begins", source=self.source.name, tables=len(tables), gtids=snapshot.position.gtids,
                number=len(kept.snapshots) - 1, tables_left=len(left),
            )  # fmt: skip
            limits = {"chunk_rows": self.source.snapshot.chunk_rows, "most_rows": self.source.snapshot.chunk_rows}
            reader = SnapshotReader(snapshot, left, version, progress, moves=moves, **limits)
            keeper = ChunkKeeper(self.publisher, self.source.name, kept, began_ms)
            try:
                with closing(reader.values()) as values:
                    for value in values:
                        if self.stopped.is_set():
                            raise Stopped
                        keeper.add(value)
                keeper.flush()
            finally:
                keeper.abandon()
        return progress, reader.doubtful

    def _join(self, kept: KeptLoad, held: Held, progress: Progress, doubtful: set[Name]) -> None:
        """The load in the order of its commits: what was read in each snapshot, and what the log then changed."""
        batches = kept.batches()
        caught: dict[int, list[Batch]] = {number: [] for number in batches}
        if len(kept.snapshots) > 1 or doubtful:
            progress.state = "catching up"
            flavor = self.catalog.flavor(self.source.name)
            end = self._log_end(kept.snapshots[-1]) if doubtful else None
            catch_up = CatchUp(
                self.source, self.server_id, flavor, kept.snapshots, kept.tables, self.catalog,
                lambda: open_session(OneServer(self.source).connect, flavor), self.stopped, doubtful, end,
            )  # fmt: skip
            for number, outgoing in catch_up.read():
                caught[number] += self.publisher.hold(held, outgoing)
        held.batches[:] = [batch for number in sorted(batches) for batch in (*batches[number], *caught[number])]

    def _log_end(self, snapshot: SnapshotPlace) -> Position:
        """Where the log of the snapshot's server ends; raises CannotJoin where another one answers."""
        with closing(OneServer(self.source).connect()) as link:
            server = read_identity(link, flavor_of(link)).uuid
            if server != snapshot.server:
                raise CannotJoin(f"names may have moved at server {snapshot.server}, and {server} may not know of it")
            return log_end(link)

    def _open(self) -> tuple[Snapshot, list[DatabaseDescription], tuple[int, ...]]:
        """A snapshot, the definitions that its tables have in it, and how many names had moved before it."""
        server = OneServer(self.source)
        with closing(server.connect()) as link:
            before = describe_source(link)
            for _ in range(_TRIES):
                moves = count_moves(link)
                names = [(table.db, table.name) for database in before for table in database.tables]
                snapshot = open_snapshot(server.connect, flavor_of(link), self.source.snapshot.threads, names)
                try:
                    after = describe_source(link)
                except BaseException:
                    snapshot.close()
                    raise
                if after == before:
                    return snapshot, after, moves
                snapshot.close()
                before = after
        raise Transient("the source's definitions change all the time", hint="start again when its DDL is over")

    def _publish_definitions(
        self,
        position: Position,
        databases: Sequence[DatabaseDescription],
        began_ms: int,
        kept: KeptLoad,
        place: SnapshotPlace,
    ) -> tuple[list[SourceTable], int]:
        """The tables of the load, by their definitions in the catalog, which are published; and their SchemaVersion."""
        name, catalog = self.source.name, self.catalog
        from_ts = kept.from_ts or self.publisher.fetch_ts(name)
        with catalog.lock:
            changes = catalog.adopt(name, databases)
            texts = {(table.db, table.name): table.create for database in databases for table in database.tables}
            found = {
                table: definition
                for table in texts
                if self.source.snapshot.loads(*table) and (definition := catalog.table(name, *table)) is not None
            }
            kept.fit({table: definition.id for table, definition in found.items()})
            facts = kept.facts(place, from_ts)
            if changes:
                held = Held(name)
                self.publisher.hold(held, _definitions(changes, position, began_ms))
                self.publisher.commit(held, position, facts)
            else:
                # Its last commit_ts stays: by it the registry knows the folder for the newest one.
                known = self.journal.places().get(name) or Place(position)
                self.journal.commit([], {name: replace(known, position=position)}, facts=facts)
            tables = [
                SourceTable(table, definition, texts[table], kept.tables[table].ranges)
                for table, definition in found.items()
            ]
            return tables, catalog.version

    def _commit(self, held: Held, kept: KeptLoad, progress: Progress) -> None:
        progress.state = "committing"
        name, position = self.source.name, kept.snapshots[-1].position
        state = progress.to_json()
        done = {one: state[one] for one in ("from_ts", "rows", "tables", "seconds")}
        record = {"state": "done", **done, "tables_done": state["tables"]}
        facts = record_facts(name, record) | {SERVER + name: kept.snapshots[-1].server}
        commit_ts = 0
        if held.batches:
            commit_ts = self.publisher.commit(held, position, facts, is_load=True)
        else:
            place = self.journal.places()[name]
            self.journal.commit([], {name: place}, facts=facts, loaded=name)
            commit_ts = place.commit_ts
        self.journal.set_facts(record_facts(name, {**record, "commit_ts": str(commit_ts)}))
        progress.commit_ts, progress.state = commit_ts, "done"
        log.info(
            "snapshot_done", source=name, commit_ts=str(commit_ts), snapshots=len(kept.snapshots),
            **{k: v for k, v in record.items() if k != "state"},
        )  # fmt: skip


def _definitions(changes: Sequence[SchemaChange], position: Position, began_ms: int) -> list[Outgoing]:
    return [
        Outgoing(
            f"snapshot-{position.file}:{position.offset}-{n - len(changes)}", began_ms,
            ddl=Ddl(change.query, change.job_id, change.job, change.schema_state),
        )
        for n, change in enumerate(changes)
    ]  # fmt: skip


def _source_error(error: err.Error) -> BinlakeError:
    code, text = (error.args[0] if error.args else 0), error.args[-1:]
    if code in _PRIVILEGES or isinstance(error, err.ProgrammingError):
        return SourceRefused(
            f"the source refuses the load: {code} {text}",
            hint="the user needs SELECT, RELOAD (or LOCK TABLES), REPLICATION SLAVE and REPLICATION CLIENT",
        )
    return SourceUnavailable(f"the source broke the load off: {code} {text}")
