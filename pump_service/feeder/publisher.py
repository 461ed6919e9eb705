"""Gives source transactions to the pumps as TiDB does: P, a commit_ts fetched after its ack, the journal, then C.

(Invariant 2; hazards R-09, R-10.) A batch takes two timestamp requests and one fsync, whatever its size. While PD or
all pumps are unavailable it waits, and says so in `blocked`.
"""

from __future__ import annotations

import functools
import itertools
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

import structlog

from binlake.common.spool import MessagePiece
from binlake.errors import SourceUnavailable
from binlake.mysqlbinlog.model import BinlogPosition
from binlake.pump_service.feeder.journal import Batch, FeederJournal, Json, LoadedChunk, ReadPosition
from binlake.rows.schema.job import PUBLIC
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

log = structlog.get_logger()

Answer = TypeVar("Answer")

_RETRY_S = 0.5  # before a retry, when PD or all pumps were unavailable
_START = struct.Struct(">Q")
_MOST_COMMITS = 1 << 16
"""Consecutive timestamps requested from PD at once: it has 2^18 per millisecond."""
_KEY = b"t" + bytes(8) + b"_r"
_HEAD = len(_KEY) + _START.size
_MARK = b"|"


class Stopped(Exception):
    """The feeder was asked to stop while it waited; nothing of the batch is committed."""


class PublisherClient(Protocol):
    """The pump client."""

    def write_prewrites(self, binlogs: Sequence[pb.Binlog | build.LargePrewrite]) -> list[str]:
        """Store many P; returns the node id for each. Raises SourceUnavailable."""

    def send_commit(self, binlog: pb.Binlog, node_id: str | None = None) -> str:
        """Send a C, or an R, in the background."""

    def list_usable_pumps(self) -> list[str]:
        """Node ids of the pumps that currently accept prewrites. Raises SourceUnavailable."""


@dataclass(frozen=True, slots=True)
class PublishedDdl:
    """A schema change: its statement, the schema state that its binlog names, and its job for the history by
    (start_ts, finished_ts)."""

    query: str
    job_id: int
    job: Callable[[int, int], Json]
    schema_state: int = PUBLIC


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One transaction of a source: `id` and `time_ms` as the source has them, its rows (`value`; `pieces` of a large
    transaction) or a schema change."""

    id: str
    time_ms: int
    value: bytes = b""
    pieces: tuple[MessagePiece, ...] = ()
    ddl: PublishedDdl | None = None


def build_key(start_ts: int, tail: str) -> bytes:
    """The prewrite_key of a transaction: a unique key followed by the transaction's identity at the source
    (`build_tail`)."""
    return _KEY + _START.pack(start_ts) + _MARK + tail.encode()


def build_tail(source: str, transaction: Outgoing) -> str:
    """`source|id|time_ms`."""
    return f"{source}|{transaction.id}|{transaction.time_ms}"


def parse_source(batch: Batch) -> str:
    """The source of a batch's transactions: their tails begin with it."""
    return batch.keys[0].partition("|")[0]


def read_key(key: bytes) -> tuple[int, str] | None:
    """(start_ts, tail) of a key from `build_key`; None for any other key."""
    if len(key) <= _HEAD or key[: len(_KEY)] != _KEY or key[_HEAD : _HEAD + 1] != _MARK:
        return None
    return _START.unpack_from(key, len(_KEY))[0], key[_HEAD + 1 :].decode(errors="replace")


@dataclass
class UncommittedBatches:
    """Batches that are prewritten and not committed yet; they are committed together or not at all."""

    source: str
    batches: list[Batch] = field(default_factory=list)
    jobs: list[tuple[int, Callable[[int, int], Json]]] = field(default_factory=list)


class SourcePublisher:
    """Thread-safe for different sources. `fetch_ts(count)`: the last of `count` consecutive fresh timestamps.

    Methods raise Stopped, and errors that remain when PD and the pumps are available.
    """

    def __init__(
        self, journal: FeederJournal, client: PublisherClient, fetch_ts: Callable[[int], int], stopped: threading.Event
    ) -> None:
        self._journal = journal
        self._client = client
        self._fetch_ts = fetch_ts
        self._stopped = stopped
        self._lock = threading.Lock()
        self._commits_left: dict[int, int] = {}
        self._source_of: dict[int, str] = {}
        self._batch_of: dict[int, int] = {}
        self._fenced = False
        self.blocked: dict[str, str] = {}
        self.retries: Counter[str] = Counter()

    def publish(
        self,
        source: str,
        transactions: Sequence[Outgoing],
        end: BinlogPosition | None,
        facts: Mapping[str, str] | None = None,
    ) -> int:
        """`prewrite` and `commit` `transactions` in their order. Returns the last commit_ts."""
        uncommitted = UncommittedBatches(source)
        self.prewrite(uncommitted, transactions)
        return self.commit(uncommitted, end, facts)

    def prewrite(
        self, uncommitted: UncommittedBatches, transactions: Sequence[Outgoing], counts: Sequence[int] = ()
    ) -> list[Batch]:
        """Prewrite `transactions`, and append them to `uncommitted`.

        Returns the added batches: one, or one for each of `counts`, with that many transactions.
        """
        if not transactions:
            return []
        count, source = len(transactions), uncommitted.source
        first = self._retry(source, lambda: self._fetch_ts(count)) - count + 1
        keys = tuple(build_tail(source, transaction) for transaction in transactions)
        prewrites = [
            _build_transaction_prewrite(first + n, keys[n], transaction) for n, transaction in enumerate(transactions)
        ]
        bounds = list(pairwise(accumulate(counts or [count], initial=0)))
        for low, high in bounds:
            self._journal.mark_open(first + low, high - low)
        try:
            pumps = self._retry(source, lambda: self._client.write_prewrites(prewrites))
        except BaseException:
            for low, _ in bounds:
                self._journal.abandon(first + low)
            raise
        ddls = {first + n: transaction.ddl for n, transaction in enumerate(transactions) if transaction.ddl is not None}
        named = {start_ts: (ddl.query, ddl.job_id, ddl.schema_state) for start_ts, ddl in ddls.items()}
        added = [
            Batch(
                first + low, keys[low:high], tuple(pumps[low:high]),
                {start: ddl for start, ddl in named.items() if first + low <= start < first + high},
            )
            for low, high in bounds
        ]  # fmt: skip
        uncommitted.batches += added
        uncommitted.jobs += [(start_ts, ddl.job) for start_ts, ddl in ddls.items()]
        return added

    def commit(
        self,
        uncommitted: UncommittedBatches,
        end: BinlogPosition | None,
        facts: Mapping[str, str] | None = None,
        *,
        is_load: bool = False,
        chunks: Sequence[LoadedChunk] = (),
    ) -> int:
        """Commit all of `uncommitted` in order, together with `facts`; returns the last commit_ts. Reading resumes at
        `end`; None: where it would have before. `is_load`: these are all open chunks of a full load; `chunks`: what is
        recorded of it besides."""
        firsts, finished = self._assign_commit_ts(uncommitted)
        jobs = [job(start_ts, finished) for start_ts, job in uncommitted.jobs]
        if self._fenced:
            raise Stopped
        if end is None:
            reached = replace(self._journal.read_positions()[uncommitted.source], commit_ts=finished - 1)
        else:
            reached = ReadPosition(end, *_read_tail(uncommitted.batches[-1].keys[-1]), finished - 1)
        self._journal.commit(
            firsts,
            {uncommitted.source: reached},
            jobs=jobs,
            facts=facts,
            loaded=uncommitted.source if is_load else "",
            chunks=chunks,
        )
        for batch, first_commit in firsts:
            self._send_commits(batch, first_commit)
        return finished - 1

    def _assign_commit_ts(self, uncommitted: UncommittedBatches) -> tuple[list[tuple[Batch, int]], int]:
        """The first commit_ts of each batch, and a timestamp after all of them: the finish time of the DDL jobs."""
        firsts: list[tuple[Batch, int]] = []
        for part in _split_batches(uncommitted.batches):
            count = sum(batch.count for batch in part)
            finished = self._retry(uncommitted.source, functools.partial(self._fetch_ts, count + 1))
            first = finished - count
            for batch in part:
                firsts.append((batch, first))
                first += batch.count
        return firsts, finished

    def abandon(self, uncommitted: UncommittedBatches) -> None:
        """Roll back all of `uncommitted`; the pumps learn it when they ask."""
        for batch in uncommitted.batches:
            self._journal.abandon(batch.first_start)

    def fence(self) -> None:
        """Commit nothing from now on: another process has taken the name."""
        self._fenced = True

    def fetch_ts(self, source: str) -> int:
        """A fresh timestamp, as soon as PD answers."""
        return self._retry(source, lambda: self._fetch_ts(1))

    def resend_commits(self) -> int:
        """Resend the commits that an earlier process may not have sent; returns how many."""
        count = 0
        for batch, first_commit in list(self._journal.read_unsent()):
            self._retry("", functools.partial(self._send_commits, batch, first_commit))
            count += batch.count
        return count

    def roll_back_previous(self) -> int:
        """Send R for what an earlier process left uncommitted, to every pump; returns the number of transactions.

        An R proves nothing to a pump, but makes it ask about thousands at once instead of a few dozen.
        """
        left = self._journal.list_previous_open()
        pumps = self._retry("", self._client.list_usable_pumps) if left else []
        for start_ts in itertools.chain(*left):
            rollback = build.build_rollback(_build_prewrite(start_ts, "", b""))
            for node_id in pumps:
                self._client.send_commit(rollback, node_id)
        self._journal.forget_previous_open()
        return sum(map(len, left))

    def on_stored(self, start_ts: int) -> None:
        """Called by the pump client when a commit is on its pump."""
        with self._lock:
            first = self._batch_of.pop(start_ts, None)
            if first is None:
                return
            self._commits_left[first] -= 1
            done = not self._commits_left[first]
            if done:
                del self._commits_left[first], self._source_of[first]
        if done:
            self._journal.mark_stored(first)

    @property
    def unsent(self) -> int:
        """Number of batches with commits that are not on their pumps yet."""
        return len(self._commits_left)

    def count_unsent_by_source(self) -> Counter[str]:
        """`unsent` by the name of the source."""
        with self._lock:
            return Counter(self._source_of.values())

    def _send_commits(self, batch: Batch, first_commit: int) -> None:
        with self._lock:
            self._commits_left[batch.first_start] = batch.count
            self._source_of[batch.first_start] = parse_source(batch)
            self._batch_of.update(dict.fromkeys(batch.start_ts, batch.first_start))
        for n, start_ts in enumerate(batch.start_ts):
            prewrite = _build_prewrite(start_ts, batch.keys[n], b"", *batch.ddls.get(start_ts, ()))
            self._client.send_commit(build.build_commit(prewrite, first_commit + n), batch.pumps[n])

    def _retry(self, source: str, call: Callable[[], Answer]) -> Answer:
        """The result of `call`, repeated until PD and the pumps are available."""
        while True:
            try:
                answer = call()
            except SourceUnavailable as error:
                if self._stopped.is_set():
                    raise Stopped from error
                self.retries[source] += 1
                if source not in self.blocked:
                    log.warning("publishing_waiting", source=source, error=str(error))
                self.blocked[source] = str(error)
                if self._stopped.wait(_RETRY_S):
                    raise Stopped from error
                continue
            if self.blocked.pop(source, None) is not None:
                log.info("publishing_resumed", source=source)
            return answer


def _split_batches(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Runs of `batches` whose commit_ts are requested together."""
    part, count = list[Batch](), 0
    for batch in batches:
        if part and count + batch.count > _MOST_COMMITS:
            yield part
            part, count = [], 0
        part.append(batch)
        count += batch.count
    yield part


def _read_tail(tail: str) -> tuple[str, int]:
    """(id, time_ms) of a transaction, from its tail (`build_tail`)."""
    id_, _, time_ms = tail.partition(_MARK.decode())[2].rpartition(_MARK.decode())
    return id_, int(time_ms)


def _build_prewrite(
    start_ts: int, tail: str, value: bytes, query: str = "", job_id: int = 0, state: int = 0
) -> pb.Binlog:
    key = build_key(start_ts, tail)
    if not job_id:
        return build.build_prewrite(start_ts, key, value)
    return build.build_prewrite(start_ts, key, ddl_query=query.encode(), ddl_job_id=job_id, ddl_schema_state=state)


def _build_transaction_prewrite(start_ts: int, tail: str, transaction: Outgoing) -> pb.Binlog | build.LargePrewrite:
    if transaction.pieces:
        return build.build_large_prewrite(start_ts, build_key(start_ts, tail), transaction.pieces)
    ddl = transaction.ddl
    if ddl is None:
        return _build_prewrite(start_ts, tail, transaction.value)
    return _build_prewrite(start_ts, tail, b"", ddl.query, ddl.job_id, ddl.schema_state)
