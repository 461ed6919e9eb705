"""The feeder as a process: its parts in the order in which they need each other, a worker for each source, its end.

The status port serves before a pump can ask about what an earlier process left; commits of that process are sent again
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
from binlake.cluster.placement import EtcdClient, PdClient, Registry
from binlake.cluster.pumpclient import ClientOptions, PumpClient
from binlake.errors import BinlakeError, Fenced, SharedFailure, SourceUnavailable
from binlake.mysqlbinlog.model import Flavor
from binlake.rpc import Tls
from pump_service.feeder.beginning import begin_at_log
from pump_service.feeder.catalog import Catalog, SourceNames
from pump_service.feeder.checks.servers import describe_hidden
from pump_service.feeder.connection import open_log
from pump_service.feeder.journal import Journal
from pump_service.feeder.metrics import metrics_page
from pump_service.feeder.publisher import Publisher, Stopped
from pump_service.feeder.registration import HEARTBEAT_S, Registration
from pump_service.feeder.removed import FLAVOR, describe_removed, end_removed_loads, known_sources
from pump_service.feeder.server import ask, connect, flavor_of, tracker_arguments
from pump_service.feeder.settings import FeederFile, SourceFile
from pump_service.feeder.snapshot.kept import load_record
from pump_service.feeder.snapshot.loading import Loader, needs_load
from pump_service.feeder.snapshot.progress import Progress
from pump_service.feeder.startplace import SERVER
from pump_service.feeder.status import JournalHistory, JournalTransactions, describe_place
from pump_service.feeder.tracker import ScratchServer
from pump_service.feeder.worker import Log, Parts, Worker
from pump_service.replay.status_server import StatusServer

log = structlog.get_logger()

Answer = TypeVar("Answer")

VERSION = "8.0.11-TiDB-v7.5.0"
STATUS_PATH = "/feeder"
_AGAIN_S = 0.5
_DRAIN_S = 10.0
_FORGET_EVERY_S = 3600.0
_DAY_MS = 86_400_000


class Feeder:
    """One process. `run` returns after `stop`; it raises what ended the feeder."""

    def __init__(self, settings: FeederFile) -> None:
        self._settings = settings
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._running = len(settings.source)
        self._names = frozenset(one.name for one in settings.source)
        self._lock = threading.Lock()
        self._loads: dict[str, Progress] = {}
        self._troubles: dict[str, str] = {}
        self.workers: list[Worker] = []
        self.url = ""

    def stop(self) -> None:
        """End soon: what is prewritten and not in the journal is rolled back, and read again by the next process."""
        self._stopped.set()

    def run(self, started: Callable[[str], None] = lambda _: None) -> None:
        """Feed until `stop`, or until no source can be fed; `started(url)`: the status port serves."""
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
        tls = Tls.of(*settings.security.files())
        journal = stack.enter_context(closing(Journal(settings.data_dir)))
        pd = stack.enter_context(closing(PdClient(settings.pd_urls, tls=tls)))
        etcd = stack.enter_context(closing(EtcdClient(settings.pd_urls, tls=tls)))
        cluster_id = self._retry(pd.cluster_id)
        registration = Registration(etcd, settings.name, cluster_id, journal, settings.data_dir)
        self._retry(lambda: registration.begin(self._stopped.wait))
        options = ClientOptions(strategy=settings.strategy, label=settings.label, tls=tls)
        client = PumpClient(Registry(etcd), cluster_id, options, stored=lambda start_ts: publisher.on_stored(start_ts))
        publisher = Publisher(journal, client, pd.tso, self._stopped)
        stack.enter_context(self._open_status(journal, publisher, cluster_id))
        stack.enter_context(client)
        started(self.url)
        end_removed_loads(journal, self._names)
        rolled_back, resumed = publisher.roll_back_left(), publisher.resume()
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

    def _open_status(self, journal: Journal, publisher: Publisher, cluster_id: int) -> StatusServer:
        names = self._names | known_sources(journal)
        meta = {"version": VERSION, "case": "feeder", "seed": self._settings.name}
        pages = {
            STATUS_PATH: lambda: (json.dumps(self._describe(journal, publisher, cluster_id)), "application/json"),
            "/metrics": lambda: metrics_page(self.workers, publisher),
        }
        server = StatusServer(
            meta, JournalHistory(journal), JournalTransactions(journal, names), lambda: tso.MAX_TS,
            self._settings.status_addr, pages=pages,
        )  # fmt: skip
        self.url = server.url
        return server

    def _start_workers(self, stack: ExitStack, journal: Journal, publisher: Publisher) -> None:
        settings = self._settings
        flavors = {one.name: self._flavor_of(one, journal) for one in settings.source}
        trackers = {
            one.name: ScratchServer(one.name, flavors[one.name], tracker_arguments(settings.tracker_of(one)))
            for one in settings.source
        }
        for scratch in trackers.values():
            stack.callback(scratch.close)
        names = [SourceNames(one.name, flavors[one.name], one.database_name, one.ignores) for one in settings.source]
        catalog = Catalog(names, trackers, journal.jobs()[::-1])
        parts = Parts(journal, publisher, catalog, self._stopped, catalog.version)
        for one in settings.source:
            self.workers.append(Worker(one, parts, self._beginning(one, parts, catalog), self._on_end))
        for worker in self.workers:
            worker.start()

    def _flavor_of(self, source: SourceFile, journal: Journal) -> Flavor:
        """As it was found first: a source that is away does not keep the others from being read."""
        fact = FLAVOR + source.name
        known = journal.fact(fact)
        if not known:
            with closing(self._retry(lambda: connect(source))) as link:
                known = flavor_of(link).value
            journal.set_facts({fact: known})
        return Flavor(known)

    def _beginning(self, source: SourceFile, parts: Parts, catalog: Catalog) -> Callable[[], Log]:
        def begin() -> Log:
            journal = parts.journal
            if needs_load(journal, source):
                watch = functools.partial(self._watch_load, source.name)
                server_id = self._settings.server_id_of(source)
                loader = Loader(source, journal, parts.publisher, catalog, self._stopped, watch, server_id)
                self._retry(lambda: _warn_of_hidden(source), source.name)
                self._retry(loader.load, source.name)
            elif source.name not in journal.places():
                self._retry(lambda: begin_at_log(source, journal, parts.publisher, catalog), source.name)
            with catalog.lock:
                parts.version = catalog.version
            place = journal.places()[source.name]
            fact = SERVER + source.name
            return open_log(
                source, self._settings.server_id_of(source), place.position,
                last_uuid=journal.fact(fact), last_id=place.last_id,
                on_server=lambda uuid: journal.set_facts({fact: uuid}),
            )  # fmt: skip

        return begin

    def _on_end(self, failure: BaseException | None) -> None:
        """A worker ended: the feeder ends with the last one, and with what is nobody's own fault."""
        with self._lock:
            self._running -= 1
            is_own = isinstance(failure, BinlakeError) and not isinstance(failure, SharedFailure)
            if failure is not None and (not self._running or not is_own):
                self._failure = self._failure or failure
                self._stopped.set()

    def _watch(self, registration: Registration, journal: Journal, publisher: Publisher) -> None:
        """Until the end: keep the name, and forget old outcomes."""
        forget_at = 0.0
        while not self._stopped.wait(HEARTBEAT_S):
            try:
                registration.renew()
            except SourceUnavailable as error:
                log.warning("feeder_not_renewed", error=str(error))
            except Fenced:
                publisher.fence()
                raise
            if time.monotonic() > forget_at:
                forget_at = time.monotonic() + _FORGET_EVERY_S
                journal.forget(tso.compose(int(time.time() * 1000 - self._settings.keep_days * _DAY_MS)))

    def _end_workers(self, client: PumpClient) -> None:
        self._stopped.set()
        for worker in self.workers:
            worker.wake()
        for worker in self.workers:
            worker.join()
        left = client.drain(_DRAIN_S)
        if left:
            log.warning("commits_left", count=left, reason="the next start sends them again, and the pumps ask")

    def _describe(self, journal: Journal, publisher: Publisher, cluster_id: int) -> dict[str, Any]:
        """The page `/feeder`."""
        places = journal.places()
        return {
            "name": self._settings.name,
            "cluster_id": str(cluster_id),
            "unsent_batches": publisher.unsent,
            "sources": [
                _describe_worker(one) | describe_place(places.get(one.source.name)) | self._describe_load(one, journal)
                for one in self.workers
            ],
            "removed": describe_removed(journal, self._names),
        }

    def _describe_load(self, worker: Worker, journal: Journal) -> dict[str, Any]:
        """`load`: how far the full load of a source is, or what it was, and what is in its way; nothing where it has
        none."""
        name = worker.source.name
        progress = self._loads.get(name)
        record = progress.to_json() if progress is not None else load_record(journal, name)
        trouble = {"trouble": self._troubles[name]} if name in self._troubles and not worker.trouble else {}
        if not record:
            return trouble
        return {"load": record, "state": "loading" if worker.state == "starting" else worker.state, **trouble}

    def _watch_load(self, name: str, progress: Progress) -> None:
        self._loads[name] = progress
        self._troubles.pop(name, None)

    def _retry(self, call: Callable[[], Answer], source: str = "") -> Answer:
        """What `call` gives, once the other side is there; the status says why `source` waits. Raises Stopped."""
        while True:
            try:
                answer = call()
            except SourceUnavailable as error:
                log.warning("feeder_waits", error=str(error))
                self._troubles[source] = str(error)
                if self._stopped.wait(_AGAIN_S):
                    raise Stopped from error
                continue
            self._troubles.pop(source, None)
            return answer


def _warn_of_hidden(source: SourceFile) -> None:
    """A load has what its user sees, and a server does not name the rest."""
    with closing(connect(source)) as link:
        try:
            grants = ask(link, "SHOW GRANTS")
        except pymysql.err.Error as error:
            raise SourceUnavailable(f"the source does not say what its user may: {error}") from error
    hidden = describe_hidden(str(row[0]) for row in grants)
    if hidden:
        log.warning("databases_not_loaded", source=source.name, reason=hidden)


def _describe_worker(worker: Worker) -> dict[str, Any]:
    counts = worker.counts
    return {
        "source": worker.source.name, "state": worker.state, "server": worker.server, "trouble": worker.trouble,
        "lag_s": round(worker.lag_s(), 3), "transactions": counts.transactions, "ddls": counts.ddls,
        "left_out": counts.left_out, "log_bytes": counts.log_bytes, "connections": worker.connections,
    }  # fmt: skip
