"""The full load of a source at its first start: its definitions, then all its rows, and then its log from their place.

The definitions are published first, as DDL, so that mirror and target make the tables. The rows are prewritten as they
are read and stay open: one durable step commits all of them together with the position from which the log is read. A
load that does not reach this step is rolled back and begins again: nothing has seen its rows.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import structlog
from pymysql import err
from pymysql.constants import ER

from binlake.errors import BinlakeError, SourceRefused, SourceUnavailable, Transient
from binlake.mysqlbinlog.definitions.described import DatabaseDescription
from pump_service.feeder.catalog import Catalog
from pump_service.feeder.journal import Journal, Place
from pump_service.feeder.publisher import Ddl, Held, Outgoing, Publisher, Stopped
from pump_service.feeder.server import Link, connect, flavor_of
from pump_service.feeder.settings import SourceFile
from pump_service.feeder.snapshot.opening import Snapshot, open_snapshot
from pump_service.feeder.snapshot.progress import Progress
from pump_service.feeder.snapshot.reading import SnapshotChanged, SnapshotReader, SourceTable, Value
from pump_service.feeder.snapshot.structures import describe_source, guess_rows

log = structlog.get_logger()

_TRIES = 10  # openings between which DDL may run
_AGAIN_S = 1.0  # before a snapshot that DDL ended is taken again
_READ_TIMEOUT_S = 600  # of one answer: the bound of a chunk may be far
_HELD_BYTES = 4 << 20
"""Of the values that are prewritten together."""
_PRIVILEGES = frozenset(
    {
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
    }
)


def load_record(journal: Journal, source: str) -> dict[str, Any]:
    """What the journal knows of a source's load: `state` (`loading`, `done`), `rows`, `commit_ts`; {} = it has none."""
    text = journal.fact(_fact(source))
    record: dict[str, Any] = json.loads(text) if text else {}
    return record


def needs_load(journal: Journal, source: SourceFile) -> bool:
    """Whether `source` is to be loaded: it was never read, or its load did not end."""
    if source.name in journal.places():
        return load_record(journal, source.name).get("state") == "loading"
    return source.start.mode == "snapshot"


@dataclass
class Loader:
    """Loads `source`; `watch` is given the progress of each attempt when it begins."""

    source: SourceFile
    journal: Journal
    publisher: Publisher
    catalog: Catalog
    stopped: threading.Event
    watch: Callable[[Progress], None]

    def load(self) -> None:
        """Return when all rows are committed, and the journal has the position behind them.

        Raises SourceUnavailable, SourceRefused, SchemaError, Transient, Stopped; then nothing of the load is seen.
        """
        while True:
            held = Held(self.source.name)
            try:
                self._load(held)
            except SnapshotChanged as error:
                self.publisher.abandon(held)
                log.warning("snapshot_again", source=self.source.name, reason=str(error))
                if self.stopped.wait(_AGAIN_S):
                    raise Stopped from error
            except err.Error as error:
                self.publisher.abandon(held)
                raise _source_error(error) from error
            except BaseException:
                self.publisher.abandon(held)
                raise
            else:
                return

    def _load(self, held: Held) -> None:
        snapshot, databases = self._open()
        with snapshot:
            began_ms = time.time_ns() // 1_000_000
            from_ts = self._first_ts()
            tables, version = self._publish_definitions(snapshot, databases, began_ms, from_ts)
            names = [table.name for table in tables]
            progress = Progress.of(guess_rows(snapshot.sessions[0], names), names, from_ts)
            self.watch(progress)
            log.info("snapshot_begins", source=self.source.name, tables=len(tables), gtids=snapshot.position.gtids)
            limits = {"chunk_rows": self.source.snapshot.chunk_rows, "most_rows": self.source.snapshot.chunk_rows}
            reader = SnapshotReader(snapshot, tables, version, progress, **limits)
            with closing(reader.values()) as values:
                for number, part in _together(values):
                    if self.stopped.is_set():
                        raise Stopped
                    outgoing = [
                        Outgoing(_id(snapshot, number + n), began_ms, value.value) for n, value in enumerate(part)
                    ]
                    self.publisher.hold(held, outgoing)
        self._commit(held, snapshot, progress)

    def _open(self) -> tuple[Snapshot, list[DatabaseDescription]]:
        """A snapshot, and the definitions that its tables have in it."""
        with closing(self._connect()) as link:
            before = describe_source(link)
            for _ in range(_TRIES):
                names = [(table.db, table.name) for database in before for table in database.tables]
                snapshot = open_snapshot(self._connect, flavor_of(link), self.source.snapshot.threads, names)
                try:
                    after = describe_source(link)
                except BaseException:
                    snapshot.close()
                    raise
                if after == before:
                    return snapshot, after
                snapshot.close()
                before = after
        raise Transient("the source's definitions change all the time", hint="start again when its DDL is over")

    def _connect(self) -> Link:
        """A session at the first of the source's servers that answers."""
        for address in self.source.servers[:-1]:
            try:
                return connect(self.source, address, read_timeout=_READ_TIMEOUT_S)
            except SourceUnavailable as error:
                log.warning("server_away", source=self.source.name, error=str(error))
        return connect(self.source, self.source.servers[-1], read_timeout=_READ_TIMEOUT_S)

    def _first_ts(self) -> int:
        """Before everything of the load, also of its attempts before this one."""
        known = load_record(self.journal, self.source.name).get("from_ts")
        return int(known) if known else self.publisher.fetch_ts(self.source.name)

    def _publish_definitions(
        self, snapshot: Snapshot, databases: Sequence[DatabaseDescription], began_ms: int, from_ts: int
    ) -> tuple[list[SourceTable], int]:
        """The tables to read, by their definitions in the catalog, which are published; and their SchemaVersion."""
        name, catalog = self.source.name, self.catalog
        with catalog.lock:
            changes = catalog.adopt(name, databases)
            outgoing = [
                Outgoing(
                    _id(snapshot, n - len(changes)), began_ms,
                    ddl=Ddl(change.query, change.job_id, change.job, change.schema_state),
                )
                for n, change in enumerate(changes)
            ]  # fmt: skip
            self._publish_loading(outgoing, snapshot, from_ts)
            texts = {(table.db, table.name): table.create for database in databases for table in database.tables}
            tables = [
                SourceTable(table, definition, text)
                for table, text in texts.items()
                if self.source.snapshot.loads(*table) and (definition := catalog.table(name, *table)) is not None
            ]
            return tables, catalog.version

    def _publish_loading(self, outgoing: Sequence[Outgoing], snapshot: Snapshot, from_ts: int) -> None:
        """From here on the journal says that the source is being loaded."""
        facts = {_fact(self.source.name): json.dumps({"state": "loading", "from_ts": str(from_ts)})}
        if outgoing:
            held = Held(self.source.name)
            self.publisher.hold(held, outgoing)
            self.publisher.commit(held, snapshot.position, facts)
        else:
            self.journal.commit([], {self.source.name: Place(snapshot.position)}, facts=facts)

    def _commit(self, held: Held, snapshot: Snapshot, progress: Progress) -> None:
        progress.state = "committing"
        name = self.source.name
        state = progress.to_json()
        kept = {one: state[one] for one in ("from_ts", "rows", "tables", "seconds")}
        record = {"state": "done", **kept, "tables_done": state["tables"]}
        facts = {_fact(name): json.dumps(record)}
        commit_ts = 0
        if held.last is not None:
            commit_ts = self.publisher.commit(held, snapshot.position, facts)
        else:
            place = self.journal.places()[name]
            self.journal.commit([], {name: place}, facts=facts)
            commit_ts = place.commit_ts
        self.journal.set_facts({_fact(name): json.dumps({**record, "commit_ts": str(commit_ts)})})
        progress.commit_ts, progress.state = commit_ts, "done"
        log.info(
            "snapshot_done", source=name, commit_ts=str(commit_ts), **{k: v for k, v in record.items() if k != "state"}
        )


def _fact(source: str) -> str:
    return f"load of {source}"


def _id(snapshot: Snapshot, number: int) -> str:
    """The identity of a transaction of the load, beside those of the log."""
    return f"snapshot-{snapshot.position.file}:{snapshot.position.offset}-{number}"


def _together(values: Iterable[Value]) -> Iterator[tuple[int, list[Value]]]:
    """(number of the first, values) of parts that are worth one request each."""
    number, size, part = 0, 0, list[Value]()
    for value in values:
        part.append(value)
        size += len(value.value)
        if size >= _HELD_BYTES:
            yield number, part
            number, size, part = number + len(part), 0, []
    if part:
        yield number, part


def _source_error(error: err.Error) -> BinlakeError:
    code, text = (error.args[0] if error.args else 0), error.args[-1:]
    if code in _PRIVILEGES or isinstance(error, err.ProgrammingError):
        return SourceRefused(
            f"the source refuses the load: {code} {text}",
            hint="the user needs SELECT, RELOAD (or LOCK TABLES), REPLICATION SLAVE and REPLICATION CLIENT",
        )
    return SourceUnavailable(f"the source broke the load off: {code} {text}")
