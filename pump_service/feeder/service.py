"""The feeder as a process: starts its parts in the order of their dependencies and a worker for each source, and stops.

The status port serves before a pump can ask about what an earlier process left open; that process's commits are resent
before a source is read.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, TypeVar

import pymysql
import structlog

from binlake import tso
from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import ClientOptions, PumpClient
from binlake.errors import BinlakeError, Fenced, SharedFailure, SourceUnavailable
from binlake.mysqlbinlog.charsets import REPLACED
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.catalog import Catalog, SourceNames
from binlake.pump_service.feeder.checks.servers import describe_hidden
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.dump import SERVER_FACT
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.parts import Log, Parts
from binlake.pump_service.feeder.publisher import SourcePublisher, Stopped
from binlake.pump_service.feeder.registration import HEARTBEAT_S, Registration
from binlake.pump_service.feeder.server import ask, build_tracker_arguments, connect, derive_flavor
from binlake.pump_service.feeder.settings import FeederFile, SourceFile
from binlake.pump_service.feeder.snapshot.control import read_paused
from binlake.pump_service.feeder.snapshot.loading import SnapshotLoader, needs_load
from binlake.pump_service.feeder.snapshot.loadstate import read_load_record
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.snapshot.selection import FollowedTables, Selection
from binlake.pump_service.feeder.snapshot.tablerounds import TableRounds
from binlake.pump_service.feeder.sources import (
    FLAVOR,
    describe_removed,
    list_known_sources,
    roll_back_removed_loads,
    start_at_log,
)
from binlake.pump_service.feeder.status import (
    JournalHistory,
    JournalTransactions,
    describe_position,
    find_unread_sources,
    render_metrics_page,
)
from binlake.pump_service.feeder.tracker import ScratchServer
from binlake.pump_service.feeder.worker import Worker
from binlake.pump_service.monitoring import Probes, find_no_reason
from binlake.pump_service.statusport import StatusServer
from binlake.rpc import Tls

log = structlog.get_logger()

Answer = TypeVar("Answer")

VERSION = "8.0.11-TiDB-v7.5.0"
STATUS_PATH = "/feeder"
_RETRY_S = 0.5
_DRAIN_S = 10.0
_FORGET_EVERY_S = 3600.0
_DAY_MS = 86_400_000


class Feeder:
    """One process. `run` returns after `stop`, or raises the error that ended the feeder."""

    def __init__(self, settings: FeederFile) -> None:
        self._settings = settings
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._running = len(settings.source)
        self._names = frozenset(source.name for source in settings.source)
        self._lock = threading.Lock()
        self._loads: dict[str, SnapshotProgress] = {}
        self._troubles: dict[str, tuple[str, SnapshotProgress | None]] = {}
        """What each source waits for, and the progress of the attempt of its load that found it."""
        self._registration_trouble = ""
        self.workers: list[Worker] = []
        self.url = ""

    def stop(self) -> None:
        """Stop soon: what is prewritten but not in the journal is rolled back, and read again by the next process."""
        self._stopped.set()

    def run(self, started: Callable[[str], None] = lambda _: None) -> None:
        """Run until `stop`, or until no source can be fed; calls `started(url)` once the status port serves."""
        with ExitStack() as stack:
            try:
                self._run(stack, started)
            except Stopped:
                log.info("feeder_stopped")
            finally:
                self._stopped.set()
        if self._failure is not None:
            raise self._failure

    def _run(self, stack: ExitStack, started: Callable[[str], None]) -> None:
        settings = self._settings
        tls = Tls.of(*settings.security.list_files())
        journal = stack.enter_context(closing(FeederJournal(settings.data_dir)))
        pd = stack.enter_context(closing(PdClient(settings.pd_urls, tls=tls)))
        etcd = stack.enter_context(closing(EtcdClient(settings.pd_urls, tls=tls)))
        cluster_id = self._retry(pd.fetch_cluster_id)
        registration = Registration(etcd, settings.name, cluster_id, journal, settings.data_dir)
        self._retry(lambda: registration.begin(self._stopped.wait))
        options = ClientOptions(strategy=settings.strategy, label=settings.label, tls=tls)
        client = PumpClient(
            NodeRegistry(etcd), cluster_id, options, stored=lambda start_ts: publisher.on_stored(start_ts)
        )
        publisher = SourcePublisher(journal, client, pd.fetch_ts, self._stopped)
        stack.enter_context(self._open_status(journal, publisher, cluster_id))
        stack.enter_context(client)
        started(self.url)
        roll_back_removed_loads(journal, self._names)
        rolled_back, resumed = publisher.roll_back_previous(), publisher.resend_commits()
        log.info(
            "feeder_started", name=settings.name, cluster_id=cluster_id, url=self.url, commits_sent_again=resumed,
            rolled_back=rolled_back,
        )  # fmt: skip
        self._start_workers(stack, journal, publisher)
        try:
            self._watch(registration, journal, publisher)
        finally:
            self._end_workers(client)
        registration.end()

    def _open_status(self, journal: FeederJournal, publisher: SourcePublisher, cluster_id: int) -> StatusServer:
        names = self._names | list_known_sources(journal)
        meta = {"version": VERSION, "case": "feeder", "seed": self._settings.name}
        pages = {
            STATUS_PATH: lambda: (json.dumps(self._describe(journal, publisher, cluster_id)), "application/json"),
            "/metrics": lambda: render_metrics_page(self.workers, publisher, self._loads),
        }
        server = StatusServer(
            meta, JournalHistory(journal), JournalTransactions(journal, names), lambda: tso.MAX_TS,
            self._settings.status_addr, pages=pages, probed=Probes(find_no_reason, self.find_unready),
            tls=self._settings.status_security.to_tls(),
        )  # fmt: skip
        self.url = server.url
        return server

    def _start_workers(self, stack: ExitStack, journal: FeederJournal, publisher: SourcePublisher) -> None:
        settings = self._settings
        flavors = {source.name: self._find_flavor(source, journal) for source in settings.source}
        trackers = {
            source.name: ScratchServer(
                source.name, flavors[source.name], build_tracker_arguments(settings.choose_tracker(source))
            )
            for source in settings.source
        }
        for scratch in trackers.values():
            stack.callback(scratch.close)
        followed = {source.name: FollowedTables(source, Selection.read(journal, source)) for source in settings.source}
        names = [
            SourceNames(source.name, flavors[source.name], source.derive_database_name, followed[source.name].ignores)
            for source in settings.source
        ]
        catalog = Catalog(names, trackers, journal.read_jobs()[::-1])
        parts = Parts(journal, publisher, catalog, self._stopped, catalog.version)
        for source in settings.source:
            self.workers.append(self._build_worker(followed[source.name], parts, catalog))
        for worker in self.workers:
            worker.start()

    def _find_flavor(self, source: SourceFile, journal: FeederJournal) -> Flavor:
        """The family found at the first connection: an unreachable source does not block the others."""
        fact = FLAVOR + source.name
        known = journal.read_fact(fact)
        if not known:
            with closing(self._retry(lambda: connect(source))) as link:
                known = derive_flavor(link).value
            journal.set_facts({fact: known})
        return Flavor(known)

    def _build_worker(self, followed: FollowedTables, parts: Parts, catalog: Catalog) -> Worker:
        source = followed.present.source
        begin = self._build_begin(source, parts, catalog)
        watch = functools.partial(self._watch_load, source.name)
        loads = TableRounds(followed, parts, catalog, self._settings.data_dir, watch, self._settings.target_families)
        find_trouble = functools.partial(self._find_load_trouble, source.name)
        return Worker(source, parts, begin, self._on_end, find_trouble, loads)

    def _build_begin(self, source: SourceFile, parts: Parts, catalog: Catalog) -> Callable[[], Log]:
        def begin() -> Log:
            journal = parts.journal
            if needs_load(journal, source):
                watch = functools.partial(self._watch_load, source.name)
                server_id = self._settings.choose_server_id(source)
                families = self._settings.target_families
                loader = SnapshotLoader(
                    source, journal, parts.publisher, catalog, self._stopped, watch, server_id, families,
                    lambda: source.name in read_paused(self._settings.data_dir),
                )  # fmt: skip
                self._retry(lambda: _warn_about_hidden_databases(source), source.name)
                self._retry(loader.load, source.name)
            elif source.name not in journal.read_positions():
                self._retry(lambda: start_at_log(source, journal, parts.publisher, catalog), source.name)
            with catalog.lock:
                parts.version = catalog.version
            read_position = journal.read_positions()[source.name]
            fact = SERVER_FACT + source.name
            return open_log(
                source, self._settings.choose_server_id(source), read_position.position,
                last_uuid=journal.read_fact(fact), last_id=read_position.last_id,
                on_server=lambda uuid: journal.set_facts({fact: uuid}), folder=self._settings.data_dir,
            )  # fmt: skip

        return begin

    def _on_end(self, failure: BaseException | None) -> None:
        """A worker ended: the feeder stops with the last one, or for a failure that is not the source's own."""
        with self._lock:
            self._running -= 1
            is_own = isinstance(failure, BinlakeError) and not isinstance(failure, SharedFailure)
            if failure is not None and (not self._running or not is_own):
                self._failure = self._failure or failure
                self._stopped.set()

    def _watch(self, registration: Registration, journal: FeederJournal, publisher: SourcePublisher) -> None:
        """Until stopped: renew the registration, and forget old outcomes."""
        forget_at = 0.0
        while not self._stopped.wait(HEARTBEAT_S):
            try:
                registration.renew()
                self._registration_trouble = ""
            except SourceUnavailable as error:
                self._registration_trouble = str(error)
                log.warning("feeder_registration_not_renewed", error=str(error))
            except Fenced:
                publisher.fence()
                raise
            if time.monotonic() > forget_at:
                forget_at = time.monotonic() + _FORGET_EVERY_S
                journal.forget_outcomes(tso.compose(int(time.time() * 1000 - self._settings.keep_days * _DAY_MS)))

    def find_unready(self) -> list[str]:
        """Why a source is not read, what is read not published, or the registration not renewed."""
        begin = [] if self.workers else [self._find_load_trouble("") or "no source is read yet"]
        renewing = [f"registration: {self._registration_trouble}"] if self._registration_trouble else []
        return [*begin, *find_unread_sources(self.workers), *renewing]

    def _end_workers(self, client: PumpClient) -> None:
        self._stopped.set()
        for worker in self.workers:
            worker.wake()
        for worker in self.workers:
            worker.join()
        unsent = client.drain(_DRAIN_S)
        if unsent:
            log.warning("commits_unsent", count=unsent, reason="the next start resends them, and the pumps ask")

    def _describe(self, journal: FeederJournal, publisher: SourcePublisher, cluster_id: int) -> dict[str, Any]:
        """The page `/feeder`."""
        positions = journal.read_positions()
        return {
            "name": self._settings.name,
            "cluster_id": str(cluster_id),
            "unsent_batches": publisher.unsent,
            "sources": [
                _describe_worker(worker)
                | describe_position(positions.get(worker.source.name))
                | self._describe_load(worker, journal)
                for worker in self.workers
            ],
            "removed": describe_removed(journal, self._names),
            "replaced_texts": REPLACED.get_counts(),
        }

    def _describe_load(self, worker: Worker, journal: FeederJournal) -> dict[str, Any]:
        """`load`: progress or result of a source's full load; empty without a load."""
        name = worker.source.name
        progress = self._loads.get(name)
        record = progress.to_json() if progress is not None else read_load_record(journal, name)
        if not record:
            return {}
        return {"load": record, "state": "loading" if worker.state == "starting" else worker.state}

    def _find_load_trouble(self, name: str) -> str:
        """What a load, or the start at the log, waits for; "" = nothing."""
        progress = self._loads.get(name)
        waits, failed = self._troubles.get(name, ("", None))
        if progress is None:
            return waits
        # The next attempt begins at once, but waits as well until it has read something.
        is_over = progress is not failed and progress.is_moving
        return progress.trouble if is_over else waits or progress.trouble

    def _watch_load(self, name: str, progress: SnapshotProgress) -> None:
        self._loads[name] = progress

    def _retry(self, call: Callable[[], Answer], source: str = "") -> Answer:
        """The result of `call`, retried while the server is unavailable; the status says why `source` waits.

        Raises Stopped.
        """
        while True:
            try:
                answer = call()
            except SourceUnavailable as error:
                log.warning("feeder_waiting", error=str(error))
                self._troubles[source] = (str(error), self._loads.get(source))
                if self._stopped.wait(_RETRY_S):
                    raise Stopped from error
                continue
            self._troubles.pop(source, None)
            return answer


def _warn_about_hidden_databases(source: SourceFile) -> None:
    """Log a warning for databases that the user cannot see: a load misses them, and the server does not list them."""
    with closing(connect(source)) as link:
        try:
            grants = ask(link, "SHOW GRANTS")
        except pymysql.err.Error as error:
            raise SourceUnavailable(f"the source does not show its user's privileges: {error}") from error
    hidden = describe_hidden(str(row[0]) for row in grants)
    if hidden:
        log.warning("databases_not_loaded", source=source.name, reason=hidden)


def _describe_worker(worker: Worker) -> dict[str, Any]:
    counts = worker.counts
    return {
        "source": worker.source.name, "state": worker.state, "server": worker.server, "trouble": worker.trouble,
        "heard": worker.is_heard, "heard_s": round(worker.compute_silence_s(), 3),
        "lag_s": round(worker.compute_lag_s(), 3), "transactions": counts.transactions, "ddls": counts.ddls,
        "left_out": counts.left_out, "log_bytes": counts.log_bytes, "connections": worker.connections,
    }  # fmt: skip
